// The CUDA runtime library beside driver.c: what TVM's CUDA runtime calls of it.
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define STICKY \
  if (fake.sticky) return fake.sticky

enum { NO_MEMORY = 2, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906 };

struct fake_state* fake_cuda(void) { return &fake; }

const char* cudaGetErrorName(int code) {
  switch (code) {
    case NO_MEMORY: return "cudaErrorMemoryAllocation";
    case 700: return "cudaErrorIllegalAddress";
    case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
    case CAPTURE_IMPLICIT: return "cudaErrorStreamCaptureImplicit";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(int code) { return cudaGetErrorName(code); }
int cudaGetLastError(void) {
  int last = fake.sticky ? fake.sticky : fake.last;
  fake.last = 0;
  return last;
}
int cudaPeekAtLastError(void) { return fake.sticky ? fake.sticky : fake.last; }

int cuDeviceGetCount(int* count);
int cudaGetDeviceCount(int* count) { return cuDeviceGetCount(count); }
int cudaSetDevice(int device) { STICKY; fake.current = device; return 0; }
int cudaGetDevice(int* device) { *device = fake.current; return 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) { *value = 0; return 0; }
int cudaGetDeviceProperties(void* properties, int device) { return 1; }

int cudaMalloc(void** memory, size_t size) {
  STICKY;
  if (fake.capturing) return CAPTURE_UNSUPPORTED;
  if (fake.limit && fake.used + size > fake.limit) return fake.last = NO_MEMORY;
  char* base = aligned_alloc(256, (size + 511) / 256 * 256);
  if (base == NULL) return NO_MEMORY;
  *(size_t*)base = size;
  fake.used += size;
  fake.allocations++;
  // What nobody wrote is no number.
  memset(base + 256, 0xff, size);
  *memory = base + 256;
  return 0;
}
int cudaFree(void* memory) {
  STICKY;
  if (fake.capturing) return CAPTURE_UNSUPPORTED;
  if (memory == NULL) return 0;
  fake.used -= *(size_t*)((char*)memory - 256);
  free((char*)memory - 256);
  return 0;
}
int cudaMallocHost(void** memory, size_t size) {
  STICKY;
  if (fake.no_pinned) return fake.last = NO_MEMORY;
  *memory = aligned_alloc(256, (size + 255) / 256 * 256);
  return 0;
}
int cudaFreeHost(void* memory) { STICKY; free(memory); return 0; }
int cudaMemGetInfo(size_t* available, size_t* total) {
  STICKY;
  *total = 1ull << 30;
  *available = *total - fake.used;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  STICKY;
  // A copy on the default stream while another one records.
  if (fake.capturing) return CAPTURE_IMPLICIT;
  fake.host_copies += kind != 3;
  memcpy(to, from, size);
  return 0;
}
int cudaMemcpyPeerAsync(void) { return 1; }

static char streams[1024];
static int made;
int cudaStreamCreate(void** stream) { STICKY; *stream = &streams[made++ % 1024]; return 0; }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void* stream) { return 0; }
int cudaStreamSynchronize(void* stream) { STICKY; fake.syncs++; return 0; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) { STICKY; fake.waits++; return 0; }
int cudaEventCreate(void** event) { STICKY; *event = &made; return 0; }
int cudaEventDestroy(void* event) { return 0; }
int cudaEventRecord(void* event, void* stream) { STICKY; return 0; }
int cudaEventSynchronize(void* event) { STICKY; return 0; }
int cudaEventElapsedTime(float* milliseconds, void* begin, void* end) { *milliseconds = 1; return 0; }

int cudaStreamBeginCapture(void* stream, int mode) {
  STICKY;
  fake.capturing = stream;
  fake.head = NULL;
  fake.tail = &fake.head;
  return 0;
}
int cudaStreamEndCapture(void* stream, struct fake_node** graph) {
  fake.capturing = NULL;
  *graph = fake.head;
  STICKY;
  return 0;
}
int cudaGraphInstantiate(struct fake_node** exec, struct fake_node* graph, unsigned long long f) {
  STICKY;
  *exec = graph;
  return 0;
}
int cudaGraphDestroy(void* graph) { return 0; }
int cudaGraphExecDestroy(void* exec) { STICKY; return 0; }
int cudaGraphLaunch(struct fake_node* exec, void* stream) {
  STICKY;
  fake.graph_launches++;
  for (struct fake_node* node = exec; node; node = node->next)
    node->kernel->run(node->grid, node->block, node->arguments);
  return 0;
}
