// What the two libraries of the fake CUDA share.
#include <stddef.h>

struct fake_kernel {
  void (*run)(const unsigned* grid, const unsigned* block, void** arguments);
  int count;
};

struct fake_node {
  struct fake_kernel* kernel;
  unsigned grid[3], block[3];
  long long values[32];
  void* arguments[32];
  struct fake_node* next;
};

struct fake_state {
  int sticky;     // an error that every call returns
  int fail_next;  // the error of the next kernel
  size_t used, limit;  // bytes of device memory; no limit where 0
  void* capturing;
  struct fake_node* head;
  struct fake_node** tail;
  int last;       // the error of the last call that failed
  int no_pinned;  // whether the system locks no pages
  int current;    // the device that calls are for
  int launches, graph_launches, waits, syncs, host_copies, allocations;
};

extern struct fake_state fake;
