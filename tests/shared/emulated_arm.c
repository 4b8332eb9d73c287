/* Calls a kernel with the tensors that standard input holds, and writes the last of them.

   Of each tensor: kind, bits, axes and sizes as 64-bit integers, then its bytes. Each lies between
   two forbidden pages: at the end of its own with "end" as the argument, else at their start. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* DLPack's tensor, and how TVM passes one. */
typedef struct {
  void *data;
  int32_t device_type, device_id, axes;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type, padding;
  union {
    int64_t number;
    void *pointer;
  };
} Argument;

enum { MOST = 8, PAGE = 65536, ALIGNMENT = 64, CPU = 1, TENSOR = 7 };

int __tvm_ffi_main(void *self, Argument *arguments, int32_t count, Argument *result);

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

/* What a kernel for one thread calls of TVM's runtime. */
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  for (int32_t part = 0; part < count; ++part)
    if (parts[part]) fputs(parts[part], stderr);
  fail(kind);
}

static int64_t number(void) {
  int64_t value;
  if (fread(&value, sizeof value, 1, stdin) != 1) fail("a number is missing");
  return value;
}

static void *guarded(int64_t bytes, int at_end) {
  int64_t inner = (bytes + PAGE - 1) / PAGE * PAGE;
  char *memory = mmap(NULL, inner + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + PAGE, inner, PROT_READ | PROT_WRITE))
    fail("no memory");
  return memory + PAGE + (at_end ? (inner - bytes) / ALIGNMENT * ALIGNMENT : 0);
}

static void *array(int device, int number, uint64_t bytes, int kind, int bits) {
  return guarded(bytes, 1);
}

static int forget(int device, int number, void *array) { return 0; }

/* The loader of TVM's runtime sets these. */
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = array;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = forget;

static int64_t read_tensor(Tensor *tensor, int at_end) {
  tensor->device_type = CPU;
  tensor->lanes = 1;
  tensor->kind = number();
  tensor->bits = number();
  tensor->axes = number();
  tensor->shape = calloc(2 * tensor->axes + 1, sizeof(int64_t));
  tensor->strides = tensor->shape + tensor->axes;
  int64_t elements = 1;
  for (int axis = 0; axis < tensor->axes; ++axis) tensor->shape[axis] = number();
  for (int axis = tensor->axes - 1; axis >= 0; --axis) {
    tensor->strides[axis] = elements;
    elements *= tensor->shape[axis];
  }
  int64_t bytes = elements * (tensor->bits / 8);
  tensor->data = guarded(bytes, at_end);
  if ((int64_t)fread(tensor->data, 1, bytes, stdin) != bytes) fail("a tensor is cut");
  return bytes;
}

int main(int count, char **words) {
  int at_end = count > 1 && !strcmp(words[1], "end");
  Tensor tensors[MOST] = {0};
  Argument arguments[MOST] = {0}, result = {0};
  int64_t given = number(), bytes = 0;
  if (given > MOST) fail("too many tensors");
  for (int64_t n = 0; n < given; ++n) {
    bytes = read_tensor(&tensors[n], at_end);
    arguments[n].type = TENSOR;
    arguments[n].pointer = &tensors[n];
  }
  if (__tvm_ffi_main(NULL, arguments, given, &result)) fail("the kernel failed");
  fwrite(tensors[given - 1].data, 1, bytes, stdout);
  return 0;
}
