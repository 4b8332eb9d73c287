// A CUDA driver whose device is the host: memory is the host's, kernels are functions of a library.
//
// It has what TVM's CUDA runtime calls. A module is the bytes of a shared library that has for each
// kernel NAME a function launch_NAME(grid, block, arguments) and the number of arguments,
// count_NAME. Work is done at once, in the order of the calls.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

struct fake_state fake = {0};

typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
} launch_config;

static const char* name_of(int code) {
  switch (code) {
    case 2: return "CUDA_ERROR_OUT_OF_MEMORY";
    case 100: return "CUDA_ERROR_NO_DEVICE";
    case 700: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case 701: return "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    default: return "CUDA_ERROR_UNKNOWN";
  }
}

int cuInit(unsigned flags) { return getenv("FAKE_CUDA_NO_DEVICE") ? 100 : 0; }
int cuDriverGetVersion(int* version) {
  const char* given = getenv("FAKE_CUDA_VERSION");
  *version = given ? atoi(given) : 13000;
  return 0;
}
int cuGetErrorName(int code, const char** text) { *text = name_of(code); return 0; }
int cuGetErrorString(int code, const char** text) { *text = name_of(code); return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "Fake GPU");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1ull << 30; return 0; }
int cuTensorMapEncodeTiled(void) { return 1; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }

int cuModuleLoadData(void** module, const char* image) {
  // The size of an ELF file: its table of sections is its end.
  size_t size = *(size_t*)(image + 40) + *(unsigned short*)(image + 58) * (size_t) * (unsigned short*)(image + 60);
  char path[] = "/tmp/fake-cuda-XXXXXX";
  int file = mkstemp(path);
  if (write(file, image, size) != (ssize_t)size) return 999;
  close(file);
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (*module == NULL) fprintf(stderr, "%s\n", dlerror());
  unlink(path);
  return *module == NULL ? 209 : 0;
}
int cuModuleUnload(void* module) { return 0; }

int cuModuleGetFunction(struct fake_kernel** kernel, void* module, const char* name) {
  char symbol[512];
  *kernel = calloc(1, sizeof(**kernel));
  snprintf(symbol, sizeof symbol, "launch_%s", name);
  (*kernel)->run = dlsym(module, symbol);
  snprintf(symbol, sizeof symbol, "count_%s", name);
  int* count = dlsym(module, symbol);
  if ((*kernel)->run == NULL || count == NULL) return 500;
  (*kernel)->count = *count;
  return 0;
}

int cuLaunchKernelEx(const launch_config* config, struct fake_kernel* kernel, void** arguments,
                     void** extra) {
  if (fake.sticky) return fake.sticky;
  if (fake.fail_next) {
    // As on a device: the launch succeeds, what comes after it does not.
    fake.sticky = fake.fail_next;
    fake.fail_next = 0;
    return 0;
  }
  if (!config->grid[0] || !config->grid[1] || !config->grid[2]) return 1;  // invalid value
  fake.launches++;
  if (fake.capturing != config->stream || fake.capturing == NULL) {
    kernel->run(config->grid, config->block, arguments);
    return 0;
  }
  struct fake_node* node = calloc(1, sizeof *node);
  node->kernel = kernel;
  memcpy(node->grid, config->grid, sizeof node->grid);
  memcpy(node->block, config->block, sizeof node->block);
  for (int i = 0; i < kernel->count; i++) {
    memcpy(&node->values[i], arguments[i], 8);
    node->arguments[i] = &node->values[i];
  }
  *fake.tail = node;
  fake.tail = &node->next;
  return 0;
}
