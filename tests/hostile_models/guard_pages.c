// Memory between pages that nobody may touch: a stray access ends the process.
//
// Preloaded into a process (LD_PRELOAD), this gives tensors of TVM's CPU runtime, and what kernels
// allocate for themselves, pages of their own. Either the last byte lies right before a page
// without access, or the first one right behind such a page (guard_pages_place). Memory begins as
// bytes 0xff, which are NaN as floats and -1 as integers, and is never handed out twice: an access
// after it was freed ends the process as well.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGNMENT = 64 };
static const size_t ARENA = (size_t)1 << 36;
static const size_t LARGEST_FILLED = (size_t)1 << 24;

static char *arena;
static uint32_t *page_counts;  // Of the allocation that begins in a page of the arena.
static atomic_size_t used;
static atomic_size_t end_alignment = ALIGNMENT;

extern void __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);

__attribute__((constructor)) static void reserve(void) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  page_counts = mmap(NULL, ARENA / PAGE * sizeof *page_counts, PROT_READ | PROT_WRITE, flags, -1, 0);
  char *base = mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
  if (base != MAP_FAILED && page_counts != MAP_FAILED) arena = base;
}

// From now on tensors end where a page without access begins, or as near to it as an address that
// is a multiple of `alignment` allows; with 0, they begin where one ends.
void guard_pages_place(size_t alignment) { atomic_store(&end_alignment, alignment); }

static void *guarded(size_t size, size_t least_alignment) {
  size_t pages = (size + PAGE - 1) / PAGE + (size == 0);
  if (arena == NULL || size > ARENA || pages > UINT32_MAX) return NULL;
  size_t first = atomic_fetch_add(&used, (pages + 1) * PAGE);
  if (first + (pages + 2) * PAGE > ARENA) return NULL;
  char *start = arena + first + PAGE;
  if (mprotect(start, pages * PAGE, PROT_READ | PROT_WRITE) != 0) return NULL;
  page_counts[first / PAGE + 1] = (uint32_t)pages;
  if (size <= LARGEST_FILLED) memset(start, 0xff, pages * PAGE);
  size_t alignment = atomic_load(&end_alignment);
  if (alignment == 0) return start;
  if (alignment < least_alignment) alignment = least_alignment;
  return start + (pages * PAGE - size) / alignment * alignment;
}

static int is_guarded(const void *address) {
  return arena != NULL && (const char *)address >= arena && (const char *)address < arena + ARENA;
}

static void release(void *address) {
  size_t page = (size_t)((char *)address - arena) / PAGE;
  // Memory of no bytes begins where its page ends.
  while (page_counts[page] == 0) page--;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(arena + page * PAGE, (size_t)page_counts[page] * PAGE, PROT_NONE, flags, -1, 0);
  page_counts[page] = 0;
}

static int is_runtime(void *caller) {
  static atomic_uintptr_t known;
  Dl_info found;
  if (dladdr(caller, &found) == 0 || found.dli_fname == NULL) return 0;
  uintptr_t base = (uintptr_t)found.dli_fbase;
  if (atomic_load(&known) == base) return 1;
  if (strstr(found.dli_fname, "libtvm_runtime.so") == NULL) return 0;
  atomic_store(&known, base);
  return 1;
}

// Tensors.
int posix_memalign(void **result, size_t alignment, size_t size) {
  int guard = is_runtime(__builtin_return_address(0));
  *result = guard ? guarded(size, 1) : __libc_memalign(alignment, size);
  return *result == NULL ? ENOMEM : 0;
}

void free(void *address) {
  if (is_guarded(address)) {
    release(address);
  } else {
    __libc_free(address);
  }
}

// What kernels allocate, which they take to be aligned.
void *TVMBackendAllocWorkspace(int device, int id, uint64_t size, int code, int bits) {
  return guarded((size_t)size, ALIGNMENT);
}

int TVMBackendFreeWorkspace(int device, int id, void *address) {
  release(address);
  return 0;
}
