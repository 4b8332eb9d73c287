/* The threads that run parallel loops, linked into every program in the place of TVM's.
 *
 * TVM's own pool hands each thread one fixed share, and a thread without work yields its core
 * hundreds of thousands of times before it sleeps. Beside another busy program each yield gives the
 * core away for a time slice, and the launch waits for whichever thread has lost its core.
 *
 * Here a loop is cut into more chunks than there are threads. The caller takes part, every thread
 * begins with chunks of its own and then takes those of others, so that a thread that lost its core
 * delays the loop by one chunk at most, and one that never woke by nothing. Threads wait for the
 * next loop with pauses, and then asleep; how long they pause follows from whether they have been
 * put off their core meanwhile. Short loops run on their caller alone for a while after that. One
 * pool serves all threads of the process that launch loops.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#endif

/* TVM's interface, include/tvm/runtime/c_backend_api.h. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;

typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv *penv, void *cdata);

/* Of TVM's FFI, include/tvm/ffi/c_api.h. */
typedef struct {
  int32_t type_index;
  uint32_t padding;
  int64_t value;
} TVMFFIAny;

enum { INTEGER = 1 }; /* kTVMFFIInt */

#ifdef __APPLE__
#define OPTIONAL __attribute__((weak_import))
#else
#define OPTIONAL __attribute__((weak))
#endif
OPTIONAL void TVMFFIErrorMoveFromRaised(void **error);
OPTIONAL void TVMFFIErrorSetRaised(void *error);

#define PUBLIC __attribute__((visibility("default")))

enum {
  MAX_THREADS = 256,
  MAX_LOOPS = 64,         /* loops that are open at once; a caller beyond them runs alone */
  CALL_SITES = 4096,      /* of which the time of a loop is remembered */
  CHUNKS_PER_THREAD = 8,
  CACHE_LINE = 64,
};

/* Nanoseconds. */
#define SHORTEST_CHUNK 5000.0      /* taking a chunk costs 0.1 us, and a cache line that moves */
#define SHORTEST_SHARED_LOOP 4000.0 /* handing a loop to a thread that waits costs about 1 us */
#define WAKES_PER_LOOP 3 /* a loop is worth waking threads if it is longer than that many wakes */
#define FIRST_WAKE 5000  /* until one was measured */
#define LONGEST_PAUSE 2000000
#define SHORTEST_PAUSE 20000
#define LONGEST_WAIT 100000
#define LOST_CORE 500000 /* between two looks at the clock; interrupts take a tenth, time slices more */
#define QUIET_PER_LOSS 4
#define LONGEST_QUIET 500000000
#define SHORT_LOOP 2000000.0 /* it takes less than a thread waits for its core beside a program */

typedef struct {
  _Alignas(CACHE_LINE) atomic_int next;
  int end;
} Share;

enum { FREE, CLAIMED, OPEN };

/* A parallel loop that is being run; threads join those that are open. */
typedef struct {
  _Alignas(CACHE_LINE) atomic_int state;
  FTVMParallelLambda body;
  void *data;
  TVMParallelGroupEnv env;
  int shares;
  int guests_allowed;
  _Alignas(CACHE_LINE) atomic_uint guests; /* threads inside, the caller not counted */
  atomic_int caller_sleeps;
  atomic_llong worked; /* nanoseconds of all threads */
  atomic_int failed;
  void *_Atomic error;
  Share share[MAX_THREADS];
} Loop;

/* The time that a loop takes on one thread, by the address of its body. */
typedef struct {
  void *_Atomic body;
  _Atomic float nanoseconds;
} CallSite;

static struct {
  pthread_mutex_t growing;
  atomic_int loops_used; /* the first of ``loop`` that were ever claimed */
  atomic_int workers;
  _Alignas(CACHE_LINE) atomic_uint epoch; /* counts loops; sleeping threads wait for it to change */
  _Alignas(CACHE_LINE) atomic_int sleeping;
  atomic_int pausing;
  _Alignas(CACHE_LINE) atomic_llong quiet_until; /* no pauses before, because a core was lost */
  atomic_llong quiet_for;
  atomic_llong wake_cost;
  Loop loop[MAX_LOOPS];
  CallSite call_site[CALL_SITES];
} pool;

static _Thread_local int threads_wanted = 0; /* not set yet */
static _Thread_local int inside_of_loop = 0;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#elif defined(__aarch64__)
  for (int i = 0; i < 8; ++i) __asm__ volatile("isb");
#endif
}

/* ---- Sleeping until a word changes ---- */

#ifdef __linux__

/* Of linux/futex.h, which not every C library brings. */
enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };

/* 1 if another thread woke this one, 0 if the word was another already or a signal came. */
static int sleep_while(atomic_uint *word, unsigned value) {
  return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0) == 0;
}

/* How many threads it woke. */
static int wake(atomic_uint *word, int count) {
  long woken = syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
  return woken > 0 ? (int)woken : 0;
}

#else

static pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_condition = PTHREAD_COND_INITIALIZER;

static int sleep_while(atomic_uint *word, unsigned value) {
  pthread_mutex_lock(&sleep_mutex);
  while (atomic_load(word) == value) pthread_cond_wait(&sleep_condition, &sleep_mutex);
  pthread_mutex_unlock(&sleep_mutex);
  return 0;
}

static int wake(atomic_uint *word, int count) {
  (void)word;
  (void)count;
  pthread_mutex_lock(&sleep_mutex);
  pthread_cond_broadcast(&sleep_condition);
  pthread_mutex_unlock(&sleep_mutex);
  return 0;
}

#endif

/* ---- Running chunks ---- */

static void keep_error(Loop *loop) {
  void *error = NULL;
  if (TVMFFIErrorMoveFromRaised) TVMFFIErrorMoveFromRaised(&error);
  void *none = NULL;
  /* Of several errors the first is told; the others stay in memory, which nothing here can free. */
  atomic_compare_exchange_strong(&loop->error, &none, error);
  atomic_store(&loop->failed, 1);
}

/* Runs chunks until all are taken: those of the thread's own share first. */
static void run_chunks(Loop *loop, int own) {
  for (int i = 0; i < loop->shares; ++i) {
    Share *share = &loop->share[(own + i) % loop->shares];
    while (atomic_load_explicit(&share->next, memory_order_relaxed) < share->end) {
      int task = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
      if (task >= share->end) break;
      if (loop->body(task, &loop->env, loop->data) != 0) keep_error(loop);
    }
  }
}

/* The guest after this must not touch the loop: its caller may have left with it. */
static void leave(Loop *loop) {
  if (atomic_fetch_sub(&loop->guests, 1) == 1 && atomic_load(&loop->caller_sleeps)) {
    wake(&loop->guests, 1);
  }
}

static int has_chunks(Loop *loop) {
  for (int i = 0; i < loop->shares; ++i) {
    if (atomic_load_explicit(&loop->share[i].next, memory_order_relaxed) < loop->share[i].end) {
      return 1;
    }
  }
  return 0;
}

/* Whether it was let in and had something to do. */
static int join(Loop *loop, int worker) {
  if (atomic_load(&loop->state) != OPEN) return 0;
  unsigned before = atomic_fetch_add(&loop->guests, 1);
  /* From here on the caller waits for this thread, if the loop is still open. */
  int worth = atomic_load(&loop->state) == OPEN && (int)before < loop->guests_allowed &&
              has_chunks(loop);
  if (worth) {
    int64_t begin = now();
    run_chunks(loop, loop->shares > 1 ? 1 + worker % (loop->shares - 1) : 0);
    atomic_fetch_add(&loop->worked, now() - begin);
  }
  leave(loop);
  return worth;
}

/* ---- Threads that wait for loops ---- */

static int is_quiet(int64_t time) { return time < atomic_load(&pool.quiet_until); }

/* Another program had the core: pauses would use up what the system grants beside it, and a short
 * loop would wait for the thread longer than it takes alone. A system takes cores for moments too,
 * so threads stay quiet in proportion, and longer if it goes on. */
static void lost_core(int64_t time, int64_t lost) {
  int64_t last = atomic_load(&pool.quiet_for);
  int goes_on = time - atomic_load(&pool.quiet_until) < QUIET_PER_LOSS * last;
  int64_t quiet = goes_on ? 2 * last : 0;
  if (quiet < QUIET_PER_LOSS * lost) quiet = QUIET_PER_LOSS * lost;
  if (quiet > LONGEST_QUIET) quiet = LONGEST_QUIET;
  atomic_store(&pool.quiet_for, quiet);
  atomic_store(&pool.quiet_until, time + quiet);
}

/* Pauses while nothing happens. Whether the epoch has changed. */
static int pause_while(unsigned epoch) {
  int64_t begin = now(), last = begin;
  int64_t budget = is_quiet(begin) ? SHORTEST_PAUSE : LONGEST_PAUSE;
  int changed = 0;
  atomic_fetch_add(&pool.pausing, 1);
  while (!(changed = atomic_load(&pool.epoch) != epoch)) {
    pause_briefly();
    int64_t time = now();
    if (time - last > LOST_CORE) {
      lost_core(time, time - last);
      break;
    }
    if (time - begin > budget) break;
    last = time;
  }
  atomic_fetch_sub(&pool.pausing, 1);
  return changed;
}

static void *work(void *number) {
  int worker = (int)(intptr_t)number;
  inside_of_loop = 1;
  for (;;) {
    unsigned epoch = atomic_load(&pool.epoch);
    int worked = 0;
    int used = atomic_load(&pool.loops_used);
    for (int i = 0; i < used; ++i) worked |= join(&pool.loop[i], worker);
    if (worked || pause_while(epoch)) continue;
    atomic_fetch_add(&pool.sleeping, 1);
    /* Whoever wakes a thread counts it as awake. */
    if (!sleep_while(&pool.epoch, epoch)) atomic_fetch_sub(&pool.sleeping, 1);
  }
  return NULL;
}

static void grow(int workers) {
  if (workers > MAX_THREADS - 1) workers = MAX_THREADS - 1;
  if (atomic_load(&pool.workers) >= workers) return;
  pthread_mutex_lock(&pool.growing);
  while (atomic_load(&pool.workers) < workers) {
    pthread_t thread;
    intptr_t number = atomic_load(&pool.workers);
    /* Without the thread the others do its share. */
    if (pthread_create(&thread, NULL, work, (void *)number) != 0) break;
    pthread_detach(thread);
    atomic_fetch_add(&pool.workers, 1);
  }
  pthread_mutex_unlock(&pool.growing);
}

/* ---- Launching a loop ---- */

static CallSite *call_site_of(FTVMParallelLambda body) {
  uintptr_t key = (uintptr_t)body;
  CallSite *site = &pool.call_site[(key >> 4 ^ key >> 16) % CALL_SITES];
  if (atomic_load_explicit(&site->body, memory_order_relaxed) != (void *)key) {
    atomic_store_explicit(&site->body, (void *)key, memory_order_relaxed);
    atomic_store_explicit(&site->nanoseconds, 0, memory_order_relaxed);
  }
  return site;
}

/* A loop that lost its core looks long: short times are believed at once, long ones slowly. */
static void remember(CallSite *site, double sample) {
  float before = atomic_load_explicit(&site->nanoseconds, memory_order_relaxed);
  float after = before == 0 || sample < before ? sample : before + (sample - before) / 4;
  atomic_store_explicit(&site->nanoseconds, after, memory_order_relaxed);
}

static int run_alone(FTVMParallelLambda body, void *data, CallSite *site) {
  int32_t counter = 0;
  TVMParallelGroupEnv env = {&counter, 1};
  int64_t begin = now();
  int status = body(0, &env, data);
  if (site) remember(site, (double)(now() - begin));
  return status;
}

static Loop *claim_loop(void) {
  static _Thread_local int last = 0;
  for (int i = 0; i < MAX_LOOPS; ++i) {
    Loop *loop = &pool.loop[(last + i) % MAX_LOOPS];
    int free = FREE;
    if (atomic_load_explicit(&loop->state, memory_order_relaxed) == FREE &&
        atomic_compare_exchange_strong(&loop->state, &free, CLAIMED)) {
      last = (last + i) % MAX_LOOPS;
      int used = atomic_load(&pool.loops_used);
      while (used <= last && !atomic_compare_exchange_weak(&pool.loops_used, &used, last + 1)) {
      }
      return loop;
    }
  }
  return NULL;
}

static void open_loop(Loop *loop, FTVMParallelLambda body, void *data, int shares, int chunks) {
  loop->body = body;
  loop->data = data;
  loop->env.sync_handle = NULL;
  loop->env.num_task = chunks;
  loop->shares = shares;
  loop->guests_allowed = shares - 1;
  atomic_store_explicit(&loop->worked, 0, memory_order_relaxed);
  atomic_store_explicit(&loop->failed, 0, memory_order_relaxed);
  atomic_store_explicit(&loop->error, NULL, memory_order_relaxed);
  for (int i = 0; i < shares; ++i) {
    atomic_store_explicit(&loop->share[i].next, (int)((int64_t)chunks * i / shares),
                          memory_order_relaxed);
    loop->share[i].end = (int)((int64_t)chunks * (i + 1) / shares);
  }
  atomic_store(&loop->state, OPEN);
}

static void call_threads(int guests, double nanoseconds) {
  atomic_fetch_add(&pool.epoch, 1);
  int missing = guests - atomic_load(&pool.pausing);
  int sleeping = atomic_load(&pool.sleeping);
  if (missing > sleeping) missing = sleeping;
  int64_t cost = atomic_load_explicit(&pool.wake_cost, memory_order_relaxed);
  if (missing <= 0) return;
  if (nanoseconds != 0 && nanoseconds < (double)WAKES_PER_LOOP * cost) {
    /* Wakes are not measured meanwhile: the cost is believed less and less. */
    atomic_store_explicit(&pool.wake_cost, cost - cost / 64, memory_order_relaxed);
    return;
  }
  int64_t begin = now();
  int woken = wake(&pool.epoch, missing);
  if (woken == 0) return;
  atomic_fetch_sub(&pool.sleeping, woken);
  int64_t sample = (now() - begin) / woken;
  if (sample > 2 * FIRST_WAKE) sample = 2 * FIRST_WAKE; /* the core was lost meanwhile */
  atomic_store_explicit(&pool.wake_cost, cost + (sample - cost) / 8, memory_order_relaxed);
}

/* Waits for the guests: a while with pauses, then asleep. A guest that shares this core, or lost
 * its own to another program, gets this one. Returns how long it was. */
static int64_t wait_for_guests(Loop *loop, int64_t worked) {
  int64_t begin = now(), time = begin;
  int64_t pauses = SHORTEST_PAUSE + (worked / 2 < LONGEST_WAIT ? worked / 2 : LONGEST_WAIT);
  unsigned guests;
  while ((guests = atomic_load(&loop->guests)) != 0) {
    time = now();
    if (time - begin < pauses) {
      pause_briefly();
      continue;
    }
    atomic_store(&loop->caller_sleeps, 1);
    guests = atomic_load(&loop->guests);
    if (guests != 0) sleep_while(&loop->guests, guests);
    atomic_store(&loop->caller_sleeps, 0);
    time = now();
  }
  return time - begin;
}

static int close_loop(Loop *loop) {
  int failed = atomic_load(&loop->failed);
  void *error = atomic_load(&loop->error);
  atomic_store(&loop->state, FREE);
  if (!failed) return 0;
  if (error && TVMFFIErrorSetRaised) TVMFFIErrorSetRaised(error);
  return -1;
}

static int chunks_for(int threads, double nanoseconds) {
  int most = CHUNKS_PER_THREAD * threads;
  if (nanoseconds == 0) return most;
  double chunks = nanoseconds / SHORTEST_CHUNK;
  return chunks > most ? most : chunks < threads ? threads : (int)chunks;
}

static int cores_of_affinity(void) {
#ifdef __linux__
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return CPU_COUNT(&cpus);
#endif
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}

static int cores_of_quota(const char *quota_path, const char *period_path, int unlimited) {
  long quota = 0, period = 0;
  FILE *file = fopen(quota_path, "r");
  int read = file ? fscanf(file, "%ld %ld", &quota, &period) : 0;
  if (file) fclose(file);
  if (read == 1 && period_path && (file = fopen(period_path, "r")) != NULL) {
    read += fscanf(file, "%ld", &period);
    fclose(file);
  }
  return read == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : unlimited;
}

/* What users set for OpenMP may have a count for each level of nesting. */
static int cores_of_variable(int unlimited) {
  const char *text = getenv("TVM_NUM_THREADS");
  int count = text ? atoi(text) : 0;
  if (count < 1 && (text = getenv("OMP_NUM_THREADS")) != NULL) count = atoi(text);
  return count > 0 ? count : unlimited;
}

/* Processors that the process may keep busy: those of its affinity, or fewer by its container's
 * quota or by what users say. Where TVM_NUM_THREADS says something, OMP_NUM_THREADS does not count.
 * Python has the same in hardware/cpu/system.py, and knows the groups around the process, too. */
static int usable_cores(void) {
#define CGROUP "/sys/fs/cgroup/"
  int cores = cores_of_affinity();
  int limits[] = {
      cores_of_quota(CGROUP "cpu.max", NULL, cores),
      cores_of_quota(CGROUP "cpu/cpu.cfs_quota_us", CGROUP "cpu/cpu.cfs_period_us", cores),
      cores_of_variable(cores),
  };
  for (int i = 0; i < 3; ++i) {
    if (limits[i] < cores) cores = limits[i];
  }
  return cores;
}

static int threads_of_caller(void) {
  if (threads_wanted == 0) threads_wanted = usable_cores();
  return threads_wanted;
}

/* What generated code calls; num_task is 0 there: as many as there are threads. */
static int launch(FTVMParallelLambda body, void *data, int num_task) {
  int threads = num_task > 0 ? num_task : threads_of_caller();
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  if (threads < 2 || inside_of_loop) return run_alone(body, data, NULL);
  CallSite *site = call_site_of(body);
  double before = atomic_load_explicit(&site->nanoseconds, memory_order_relaxed);
  if (before != 0 && before < SHORTEST_SHARED_LOOP) return run_alone(body, data, site);
  if (before != 0 && before < SHORT_LOOP && is_quiet(now())) return run_alone(body, data, site);
  Loop *loop = claim_loop();
  if (!loop) return run_alone(body, data, NULL);
  grow(threads - 1);
  int chunks = chunks_for(threads, before);
  open_loop(loop, body, data, threads, chunks);
  call_threads(threads - 1, before);
  int64_t begin = now();
  inside_of_loop = 1;
  run_chunks(loop, 0);
  inside_of_loop = 0;
  int64_t worked = now() - begin;
  /* No guest enters any more. */
  atomic_store(&loop->state, CLAIMED);
  int64_t waited = wait_for_guests(loop, worked);
  int64_t total = worked + atomic_load(&loop->worked);
  /* What a guest has left is less than the caller did, unless chunks differ: then the loop takes no
   * longer in all than it did before. */
  if (waited > worked + LOST_CORE && before != 0 && total > before + LOST_CORE)
    lost_core(now(), waited);
  remember(site, (double)total);
  return close_loop(loop);
}

/* ---- A child of fork has no threads but the one that forked ---- */

static void forget_threads(void) {
  pthread_mutex_init(&pool.growing, NULL);
  atomic_store(&pool.workers, 0);
  atomic_store(&pool.sleeping, 0);
  atomic_store(&pool.pausing, 0);
  atomic_store(&pool.quiet_until, 0);
  atomic_store(&pool.quiet_for, 0);
  for (int i = 0; i < MAX_LOOPS; ++i) {
    atomic_store(&pool.loop[i].guests, 0);
    atomic_store(&pool.loop[i].state, FREE);
  }
}

__attribute__((constructor)) static void prepare(void) {
  pthread_mutex_init(&pool.growing, NULL);
  atomic_store(&pool.wake_cost, FIRST_WAKE);
  pthread_atfork(NULL, NULL, forget_threads);
}

/* ---- What TVM's loader and the package see ---- */

/* Generated code calls the function behind this symbol. TVM's loader writes its own launcher into
 * libraries that show the symbol. */
__attribute__((visibility("hidden"))) int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void *,
                                                                       int) = launch;

/* How many threads run the loops that the calling thread launches, itself counted. */
PUBLIC int __tvm_ffi_tvm_ext_use_threads(void *self, const TVMFFIAny *args, int32_t count,
                                 TVMFFIAny *result) {
  (void)self;
  (void)result;
  if (count == 1) threads_wanted = args[0].value < 1 ? 1 : (int)args[0].value;
  return 0;
}

/* How many threads a program should use that nobody tells how many. */
PUBLIC int __tvm_ffi_tvm_ext_usable_cores(void *self, const TVMFFIAny *args, int32_t count,
                                 TVMFFIAny *result) {
  (void)self;
  (void)args;
  (void)count;
  result->type_index = INTEGER;
  result->value = usable_cores();
  return 0;
}

/* The launcher of this library, for others to use. */
PUBLIC int __tvm_ffi_tvm_ext_thread_pool(void *self, const TVMFFIAny *args, int32_t count,
                                 TVMFFIAny *result) {
  (void)self;
  (void)args;
  (void)count;
  result->type_index = INTEGER;
  result->value = (int64_t)(intptr_t)launch;
  return 0;
}

/* Uses another library's launcher: several programs of a process share one pool. */
PUBLIC int __tvm_ffi_tvm_ext_share_thread_pool(void *self, const TVMFFIAny *args, int32_t count,
                                       TVMFFIAny *result) {
  (void)self;
  (void)result;
  if (count == 1) {
    __TVMBackendParallelLaunch =
        (int (*)(FTVMParallelLambda, void *, int))(intptr_t)args[0].value;
  }
  return 0;
}
