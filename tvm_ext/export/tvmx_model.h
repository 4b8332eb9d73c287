/* Runs models that tvm-ext exported, in C and C++, on TVM's runtime. The same for every model.
 *
 * What is allocated when: tvmx_load allocates the weights, the first run the memory of all values
 * in between (the second run once more that of the results). Later runs of the same sizes take what
 * these gave back, and so allocate nothing but a few small handles; results that are written to the
 * caller's memory are no allocation either. Runs of other sizes allocate what they need beyond that.
 */
#ifndef TVMX_MODEL_H_
#define TVMX_MODEL_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An input or output. */
typedef struct {
  const char *name; /* in the ONNX model, as UTF-8 */
  DLDataType dtype;
  int32_t rank; /* -1 where each run decides it */
  /* Sizes; a negative one, -1 - i, is the i-th of the model's size_names: each run decides it, and
   * equal names are equal sizes. */
  const int64_t *shape;
  /* What the sizes may be, both ends included; NULL where they may be any. */
  const int64_t *least;
  const int64_t *most;
} TvmxTensorSpec;

/* An exported model; its header defines one. */
typedef struct {
  const char *library; /* name of the file in the exported folder */
  const TvmxTensorSpec *inputs;
  const TvmxTensorSpec *outputs;
  const char *const *size_names;
  const int32_t *out_params; /* outputs that a run can write to the caller's memory directly */
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_sizes;
  int32_t num_out_params;
  int32_t threads;       /* that it was compiled for */
  const char *cpu_flags; /* that the code needs, as /proc/cpuinfo spells them, between blanks */
  const char *runtime; /* the packages whose libraries run it, with their versions */
} TvmxModelSpec;

/* A loaded model, for one thread at a time. */
typedef struct TvmxModel TvmxModel;

/* Loads a model from the folder that it was exported to, or from where its library is now.
 *
 * threads: how many run it, the caller's counted. 0: as many as it was compiled for, but no more
 * than the process may keep busy by its affinity, its container's quota, and TVM_NUM_THREADS or
 * OMP_NUM_THREADS. All models of the process share one pool of threads.
 *
 * Returns NULL on failure; tvmx_last_error says why. */
TvmxModel *tvmx_load(const TvmxModelSpec *spec, const char *folder, int threads);

/* The same model for another thread: weights are shared, values in between are not. NULL on
 * failure. */
TvmxModel *tvmx_clone(const TvmxModel *model);

/* Runs the model once; 0 on success, -1 on failure.
 *
 * inputs: a tensor for each input, in memory of the host without gaps; it is read where it lies.
 * outputs: NULL, or for each output NULL or memory for it, of its dtype and shape. If memory is
 * there for all out_params of the model, none of it overlapping with an input or another output,
 * it is written to directly; else results are copied. */
int tvmx_run(TvmxModel *model, const DLTensor *const *inputs, const DLTensor *const *outputs);

/* An output of the last run, until the next run or tvmx_free; NULL if there is none. It may lie in
 * the memory of an input or of a weight: do not write to it. */
const DLTensor *tvmx_output(const TvmxModel *model, int32_t index);

/* The calling thread's last failure in one line. */
const char *tvmx_last_error(void);

/* NULL is allowed. Clones go on without the model that they were made of. */
void tvmx_free(TvmxModel *model);

#ifdef __cplusplus
}
#endif
#endif /* TVMX_MODEL_H_ */
