/* See tvmx_model.h. Written on the C interface of TVM's FFI; C11 and POSIX. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tvmx_model.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

enum {
  MAX_PATH = 4096,
  MAX_RANK = 64,
  POOLED_ALLOCATOR = 2, /* include/tvm/runtime/memory/memory_manager.h: buffers are kept for reuse */
};

/* A tensor of the caller's as the FFI takes it. */
typedef struct {
  DLManagedTensorVersioned managed;
  int64_t shape[MAX_RANK];
  int64_t strides[MAX_RANK];
} Slot;

struct TvmxModel {
  const TvmxModelSpec *spec;
  int threads;
  TVMFFIObjectHandle library; /* weights, program and kernels */
  TVMFFIObjectHandle machine; /* TVM's virtual machine, which runs the program */
  TVMFFIObjectHandle main;
  TVMFFIObjectHandle main_with_out_params;
  int64_t *sizes; /* of the run, by the index of their name; -1 while not known */
  Slot *slots;    /* of inputs, then of out_params */
  TVMFFIAny *arguments;
  TVMFFIAny result;
};

/* ---- Errors ---- */

static _Thread_local char last_error[1024] = "no error";

static int fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_error, sizeof(last_error), format, values);
  va_end(values);
  return -1;
}

const char *tvmx_last_error(void) { return last_error; }

static TVMFFIErrorCell *error_cell(TVMFFIObjectHandle error) {
  return (TVMFFIErrorCell *)((char *)error + sizeof(TVMFFIObject));
}

/* Errors of this kind are raised by the model itself, and written for users. */
#define OWN_KIND "RunError"

static int fail_as_raised(const char *otherwise) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return fail("%s", otherwise);
  TVMFFIByteArray kind = error_cell(error)->kind, message = error_cell(error)->message;
  int own = kind.size == strlen(OWN_KIND) && memcmp(kind.data, OWN_KIND, kind.size) == 0;
  if (own) {
    fail("%.*s", (int)message.size, message.data);
  } else {
    fail("%s", otherwise);
  }
  TVMFFIObjectDecRef(error);
  return -1;
}

/* ---- Calls of the FFI ---- */

static TVMFFIAny nothing(void) {
  TVMFFIAny value;
  memset(&value, 0, sizeof(value));
  return value;
}

static TVMFFIAny integer(int64_t number) {
  TVMFFIAny value = nothing();
  value.type_index = kTVMFFIInt;
  value.v_int64 = number;
  return value;
}

static TVMFFIAny text(const char *characters) {
  TVMFFIAny value = nothing();
  value.type_index = kTVMFFIRawStr;
  value.v_c_str = characters;
  return value;
}

static TVMFFIAny object(TVMFFIObjectHandle handle, int32_t type_index) {
  TVMFFIAny value = nothing();
  value.type_index = type_index;
  value.v_obj = (TVMFFIObject *)handle;
  return value;
}

static void release(TVMFFIAny *value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
  *value = nothing();
}

static void release_handle(TVMFFIObjectHandle *handle) {
  if (*handle) TVMFFIObjectDecRef(*handle);
  *handle = NULL;
}

static TVMFFIObjectHandle global_function(const char *name) {
  TVMFFIByteArray bytes = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionGetGlobal(&bytes, &function) != 0) fail_as_raised(name);
  return function;
}

/* The caller gets the object that the global function returns; NULL if it fails or returns none. */
static TVMFFIObjectHandle object_of(const char *function_name, TVMFFIAny *arguments, int count) {
  TVMFFIObjectHandle function = global_function(function_name);
  TVMFFIAny result = nothing();
  if (!function) return NULL;
  int failed = TVMFFIFunctionCall(function, arguments, count, &result);
  TVMFFIObjectDecRef(function);
  if (failed) fail_as_raised(function_name);
  return result.type_index >= kTVMFFIStaticObjectBegin ? result.v_obj : NULL;
}

/* A function of a module or of one that it imports; NULL if it has none of this name. */
static TVMFFIObjectHandle module_function(TVMFFIObjectHandle module, const char *name) {
  TVMFFIAny arguments[] = {object(module, kTVMFFIModule), text(name), integer(1)};
  arguments[2].type_index = kTVMFFIBool;
  return object_of("ffi.ModuleGetFunction", arguments, 3);
}

/* Calls a function of a module; -1 if there is none, or if it fails. */
static int call(TVMFFIObjectHandle module, const char *name, TVMFFIAny *arguments, int count,
                TVMFFIAny *result) {
  TVMFFIObjectHandle function = module_function(module, name);
  if (!function) return -1;
  TVMFFIAny ignored = nothing();
  int failed = TVMFFIFunctionCall(function, arguments, count, result ? result : &ignored);
  TVMFFIObjectDecRef(function);
  if (failed) return fail_as_raised(name);
  release(&ignored);
  return 0;
}

/* ---- Threads: the first model's pool serves all ---- */

static struct {
  pthread_mutex_t lock; /* also held while a virtual machine is made, which writes to the library */
  TVMFFIAny launcher;
  TVMFFIObjectHandle use_threads; /* never released: the pool's library has to stay */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void share_pool(TVMFFIObjectHandle library) {
  if (pool.use_threads) {
    call(library, "tvm_ext_share_thread_pool", &pool.launcher, 1, NULL);
  } else if (call(library, "tvm_ext_thread_pool", NULL, 0, &pool.launcher) == 0) {
    pool.use_threads = module_function(library, "tvm_ext_use_threads");
  }
}

static int threads_for(TVMFFIObjectHandle library, const TvmxModelSpec *spec, int asked) {
  TVMFFIAny usable = nothing();
  if (asked > 0) return asked;
  if (call(library, "tvm_ext_usable_cores", NULL, 0, &usable) != 0) return spec->threads;
  return usable.v_int64 < spec->threads ? (int)usable.v_int64 : spec->threads;
}

/* ---- Loading ---- */

/* What compiled models call in the place of a branch that cannot be run, with the reason. */
#define FAILED_BRANCH "tvm_ext.failed_branch"

static int raise_reason(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  (void)result;
  const char *reason = "a branch of the model cannot be run";
  char copy[1024];
  if (count > 0 && arguments[0].type_index == kTVMFFIStr) {
    TVMFFIByteArray *bytes =
        (TVMFFIByteArray *)((char *)arguments[0].v_obj + sizeof(TVMFFIObject));
    snprintf(copy, sizeof(copy), "%.*s", (int)bytes->size, bytes->data);
    reason = copy;
  }
  TVMFFIErrorSetRaisedFromCStr(OWN_KIND, reason);
  return -1;
}

static void register_failed_branch(void) {
  TVMFFIObjectHandle known = global_function(FAILED_BRANCH), made = NULL;
  TVMFFIByteArray name = {FAILED_BRANCH, strlen(FAILED_BRANCH)};
  if (!known && TVMFFIFunctionCreate(NULL, raise_reason, NULL, &made) == 0) {
    TVMFFIFunctionSetGlobal(&name, made, 0);
  }
  release_handle(&known);
  release_handle(&made);
}

static int check_cpu(const TvmxModelSpec *spec) {
  static const char *const lines[] = {"flags", "Features"};
  char *line = NULL;
  size_t room = 0;
  int missing = 0;
  FILE *file = *spec->cpu_flags ? fopen("/proc/cpuinfo", "r") : NULL;
  /* Where the system does not say, the code is tried. */
  while (file && getline(&line, &room, file) >= 0) {
    if (strncmp(line, lines[0], strlen(lines[0])) && strncmp(line, lines[1], strlen(lines[1]))) {
      continue;
    }
    line[strcspn(line, "\n")] = ' ';
    char flag[64];
    int used = 0;
    for (const char *at = spec->cpu_flags; sscanf(at, "%60s%n", flag + 1, &used) == 1; at += used) {
      flag[0] = ' ';
      strcat(flag, " ");
      missing = strstr(line, flag) == NULL;
      flag[strlen(flag) - 1] = '\0';
      if (missing) fail("this CPU lacks%s, which the model was compiled for", flag);
      if (missing) break;
    }
    break;
  }
  if (file) fclose(file);
  free(line);
  return missing ? -1 : 0;
}

static int check_runtime(const TvmxModelSpec *spec) {
  TVMFFIObjectHandle machines = global_function("ffi.Module.load_from_bytes.relax.VMExecutable");
  if (!machines) {
    return fail("TVM's runtime is not in this program; expected libtvm_runtime of %s: link it, "
                "with -Wl,--no-as-needed before it",
                spec->runtime);
  }
  TVMFFIObjectDecRef(machines);
  return 0;
}

/* The library maps the weights and TVM has copied them: pages that nobody reads again. */
static void give_back_mapped_weights(const char *path) {
#if defined(__linux__)
  void *library = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
  char *begin = library ? (char *)dlsym(library, "__tvm_ffi__library_bin") : NULL;
  if (begin) {
    uint64_t length;
    memcpy(&length, begin, sizeof(length));
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)begin + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)begin + length) / page * page;
    if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
  }
  if (library) dlclose(library);
#else
  (void)path;
#endif
}

static TVMFFIObjectHandle load_library(const TvmxModelSpec *spec, const char *folder) {
  char path[MAX_PATH];
  int length = snprintf(path, sizeof(path), "%s/%s", folder, spec->library);
  if (length >= MAX_PATH || access(path, R_OK) != 0) {
    fail("%s/%s cannot be read; expected the folder that the model was exported to", folder,
         spec->library);
    return NULL;
  }
  TVMFFIAny arguments[] = {text(path)};
  TVMFFIObjectHandle library = object_of("ffi.ModuleLoadFromFile", arguments, 1);
  if (!library) {
    fail("%s cannot be loaded; expected this system, and the libraries of %s: link these, or "
         "export the model again",
         path, spec->runtime);
    return NULL;
  }
  give_back_mapped_weights(path);
  return library;
}

static int make_machine(TvmxModel *model) {
  TVMFFIAny made = nothing();
  TVMFFIAny device[] = {integer(kDLCPU), integer(0), integer(POOLED_ALLOCATOR)};
  if (call(model->library, "vm_load_executable", NULL, 0, &made) != 0) return -1;
  model->machine = made.v_obj;
  if (call(model->machine, "vm_initialization", device, 3, NULL) != 0) return -1;
  model->main = module_function(model->machine, "main");
  if (!model->main) return -1;
  if (model->spec->num_out_params == 0) return 0;
  model->main_with_out_params = module_function(model->machine, "main_with_out_params");
  return model->main_with_out_params ? 0 : -1;
}

/* Takes over the reference to the library. */
static TvmxModel *new_model(const TvmxModelSpec *spec, TVMFFIObjectHandle library, int threads) {
  TvmxModel *model = calloc(1, sizeof(*model));
  size_t arguments = (size_t)spec->num_inputs + (size_t)spec->num_out_params;
  if (!model) {
    TVMFFIObjectDecRef(library);
    fail("there is no memory left for the model");
    return NULL;
  }
  model->spec = spec;
  model->library = library;
  model->sizes = calloc((size_t)spec->num_sizes + 1, sizeof(*model->sizes));
  model->slots = calloc(arguments + 1, sizeof(*model->slots));
  model->arguments = calloc(arguments + 1, sizeof(*model->arguments));
  int made = 0;
  if (model->sizes && model->slots && model->arguments) {
    pthread_mutex_lock(&pool.lock);
    made = make_machine(model) == 0;
    pthread_mutex_unlock(&pool.lock);
  }
  if (!made) {
    tvmx_free(model);
    fail("the model's program cannot be started; expected the libraries of %s, libtvm_runtime_extra "
         "too, and free memory",
         spec->runtime);
    return NULL;
  }
  model->threads = threads_for(library, spec, threads);
  return model;
}

TvmxModel *tvmx_load(const TvmxModelSpec *spec, const char *folder, int threads) {
  if (check_cpu(spec) != 0 || check_runtime(spec) != 0) return NULL;
  pthread_mutex_lock(&pool.lock);
  register_failed_branch();
  TVMFFIObjectHandle library = load_library(spec, folder);
  if (library) share_pool(library);
  pthread_mutex_unlock(&pool.lock);
  return library ? new_model(spec, library, threads) : NULL;
}

TvmxModel *tvmx_clone(const TvmxModel *model) {
  TVMFFIObjectIncRef(model->library);
  return new_model(model->spec, model->library, model->threads);
}

void tvmx_free(TvmxModel *model) {
  if (!model) return;
  release(&model->result);
  release_handle(&model->main);
  release_handle(&model->main_with_out_params);
  /* It holds the last result, which may lie in a slot. */
  release_handle(&model->machine);
  release_handle(&model->library);
  free(model->sizes);
  free(model->slots);
  free(model->arguments);
  free(model);
}

/* ---- Tensors of the caller ---- */

static char *first_byte(const DLTensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

static size_t size_in_bytes(const DLTensor *tensor) {
  size_t bytes = ((size_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (int i = 0; i < tensor->ndim; ++i) bytes *= (size_t)tensor->shape[i];
  return bytes;
}

static int has_gaps(const DLTensor *tensor) {
  int64_t expected = 1;
  for (int i = tensor->ndim - 1; tensor->strides && i >= 0; --i) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return 1;
    expected *= tensor->shape[i];
  }
  return 0;
}

static int overlap(const DLTensor *a, const DLTensor *b) {
  return first_byte(a) < first_byte(b) + size_in_bytes(b) &&
         first_byte(b) < first_byte(a) + size_in_bytes(a);
}

/* Checks one size and notes it under its name, if it has one. */
static int check_size(const TvmxModel *model, const TvmxTensorSpec *spec, const char *what, int axis,
                      int64_t size) {
  int64_t wanted = spec->shape[axis];
  if (wanted < 0) {
    int64_t *known = &model->sizes[-1 - wanted];
    if (*known < 0) *known = size;
    wanted = *known;
  }
  if (size != wanted) {
    return fail("%s '%s' has size %lld on axis %d, expected %lld%s%s", what, spec->name,
                (long long)size, axis, (long long)wanted, spec->shape[axis] < 0 ? " for " : "",
                spec->shape[axis] < 0 ? model->spec->size_names[-1 - spec->shape[axis]] : "");
  }
  if (spec->least && (size < spec->least[axis] || size > spec->most[axis])) {
    return fail("%s '%s' has size %lld on axis %d, expected %lld to %lld", what, spec->name,
                (long long)size, axis, (long long)spec->least[axis], (long long)spec->most[axis]);
  }
  return 0;
}

static int check_tensor(const TvmxModel *model, const TvmxTensorSpec *spec, const char *what,
                        const DLTensor *tensor) {
  if (!tensor) return fail("%s '%s' is missing", what, spec->name);
  if (tensor->device.device_type != kDLCPU) {
    return fail("%s '%s' is not in memory of the host", what, spec->name);
  }
  if (memcmp(&tensor->dtype, &spec->dtype, sizeof(DLDataType)) != 0) {
    return fail("%s '%s' has dtype {%d, %d, %d}, expected {%d, %d, %d} (code, bits, lanes)", what,
                spec->name, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes,
                spec->dtype.code, spec->dtype.bits, spec->dtype.lanes);
  }
  int rank = spec->rank < 0 ? tensor->ndim : spec->rank;
  if (tensor->ndim != rank || rank > MAX_RANK) {
    return fail("%s '%s' has rank %d, expected %d", what, spec->name, tensor->ndim, rank);
  }
  for (int i = 0; i < spec->rank; ++i) {
    if (check_size(model, spec, what, i, tensor->shape[i]) != 0) return -1;
  }
  size_t element = ((size_t)tensor->dtype.bits + 7) / 8;
  if (has_gaps(tensor) || (uintptr_t)first_byte(tensor) % element != 0) {
    return fail("%s '%s' has gaps or an odd address, expected its values one after the other", what,
                spec->name);
  }
  return 0;
}

static void keep(DLManagedTensorVersioned *managed) { (void)managed; }

/* The tensor as an argument of the program; the slot has to live as long as the argument. */
static int as_argument(const DLTensor *tensor, Slot *slot, TVMFFIAny *argument) {
  DLTensor *own = &slot->managed.dl_tensor;
  TVMFFIObjectHandle made = NULL;
  slot->managed.version.major = DLPACK_MAJOR_VERSION;
  slot->managed.version.minor = DLPACK_MINOR_VERSION;
  slot->managed.deleter = keep;
  *own = *tensor;
  own->data = first_byte(tensor);
  own->byte_offset = 0;
  own->shape = slot->shape;
  own->strides = slot->strides;
  int64_t stride = 1;
  for (int i = own->ndim - 1; i >= 0; --i) {
    slot->shape[i] = tensor->shape[i];
    slot->strides[i] = stride;
    stride *= tensor->shape[i];
  }
  if (TVMFFITensorFromDLPackVersioned(&slot->managed, 0, 1, &made) != 0) {
    return fail_as_raised("there is no memory left for the run");
  }
  *argument = object(made, kTVMFFITensor);
  return 0;
}

/* ---- Runs ---- */

static const DLTensor *output_of(const TVMFFIAny *result, int32_t index) {
  const TVMFFIObject *found = NULL;
  if (result->type_index == kTVMFFITensor && index == 0) {
    found = result->v_obj;
  } else if (result->type_index == kTVMFFIArray) {
    const TVMFFISeqCell *cell =
        (const TVMFFISeqCell *)((const char *)result->v_obj + sizeof(TVMFFIObject));
    if (index < cell->size) found = ((const TVMFFIAny *)cell->data)[index].v_obj;
  }
  return found ? (const DLTensor *)((const char *)found + sizeof(TVMFFIObject)) : NULL;
}

const DLTensor *tvmx_output(const TvmxModel *model, int32_t index) {
  return index < 0 ? NULL : output_of(&model->result, index);
}

static int check_run(TvmxModel *model, const DLTensor *const *inputs,
                     const DLTensor *const *outputs) {
  const TvmxModelSpec *spec = model->spec;
  for (int i = 0; i < spec->num_sizes; ++i) model->sizes[i] = -1;
  for (int i = 0; i < spec->num_inputs; ++i) {
    if (check_tensor(model, &spec->inputs[i], "input", inputs[i]) != 0) return -1;
  }
  for (int i = 0; outputs && i < spec->num_outputs; ++i) {
    if (outputs[i] && check_tensor(model, &spec->outputs[i], "output", outputs[i]) != 0) return -1;
  }
  return 0;
}

/* Whether all out_params are there, and nothing reads or writes where one of them is written. */
static int can_write_directly(const TvmxModelSpec *spec, const DLTensor *const *inputs,
                              const DLTensor *const *outputs) {
  if (!outputs || spec->num_out_params == 0) return 0;
  for (int i = 0; i < spec->num_out_params; ++i) {
    const DLTensor *written = outputs[spec->out_params[i]];
    if (!written) return 0;
    for (int k = 0; k < spec->num_inputs; ++k) {
      if (overlap(written, inputs[k])) return 0;
    }
    for (int k = 0; k < i; ++k) {
      if (overlap(written, outputs[spec->out_params[k]])) return 0;
    }
  }
  return 1;
}

static int copy_results(const TvmxModel *model, const DLTensor *const *outputs) {
  for (int i = 0; outputs && i < model->spec->num_outputs; ++i) {
    const DLTensor *wanted = outputs[i], *found = tvmx_output(model, i);
    if (!wanted || !found || first_byte(wanted) == first_byte(found)) continue;
    if (wanted->ndim != found->ndim ||
        memcmp(wanted->shape, found->shape, (size_t)found->ndim * sizeof(int64_t)) != 0) {
      return fail("output '%s' is of another shape in this run than the memory for it",
                  model->spec->outputs[i].name);
    }
    memcpy(first_byte(wanted), first_byte(found), size_in_bytes(found));
  }
  return 0;
}

/* Calls the program with the arguments, of which there are so many. */
static int call_program(TvmxModel *model, int count) {
  int direct = count > model->spec->num_inputs;
  TVMFFIObjectHandle program = direct ? model->main_with_out_params : model->main;
  if (pool.use_threads) {
    TVMFFIAny threads = integer(model->threads), ignored = nothing();
    if (TVMFFIFunctionCall(pool.use_threads, &threads, 1, &ignored) != 0) return -1;
  }
  if (TVMFFIFunctionCall(program, model->arguments, count, &model->result) == 0) return 0;
  model->result = nothing();
  return fail_as_raised(
      "the run failed; expected inputs whose sizes and values the model's operators can combine, "
      "and free memory for all values of the run");
}

int tvmx_run(TvmxModel *model, const DLTensor *const *inputs, const DLTensor *const *outputs) {
  const TvmxModelSpec *spec = model->spec;
  release(&model->result);
  if (check_run(model, inputs, outputs) != 0) return -1;
  int written = can_write_directly(spec, inputs, outputs) ? spec->num_out_params : 0;
  int count = 0, failed = 0;
  for (; !failed && count < spec->num_inputs + written; count += !failed) {
    int out_param = count - spec->num_inputs;
    const DLTensor *tensor = out_param < 0 ? inputs[count] : outputs[spec->out_params[out_param]];
    failed = as_argument(tensor, &model->slots[count], &model->arguments[count]) != 0;
  }
  if (!failed) failed = call_program(model, count) != 0;
  for (int i = 0; i < count; ++i) release(&model->arguments[i]);
  return failed ? -1 : copy_results(model, outputs);
}
