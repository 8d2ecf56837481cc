// The runtime of runtime.h. With -DGJ_ASAN or -DGJ_TSAN it tells the sanitizer of every switch between fibres; under
// ThreadSanitizer this file itself must be compiled without -fsanitize=thread.
#include "runtime.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef __global__

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "switch.h"

#if defined(GJ_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
void __asan_poison_memory_region(void const volatile*, size_t);
void __asan_unpoison_memory_region(void const volatile*, size_t);
}
#endif
#if defined(GJ_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif

namespace fibre {

__thread Block* block = nullptr;

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kRing = 2 * kMaxThreads;
#if defined(GJ_ASAN)
constexpr size_t kStack = 256 << 10;
#else
constexpr size_t kStack = 64 << 10;
#endif
constexpr size_t kColour = 192;  // stacks of one size would share cache sets: each starts a little lower
constexpr size_t kArena = 1 << 20;
constexpr size_t kRedZone = 64;
constexpr int kMain = -1;

int thread_count = 0;
long order_seed = -1;

#if defined(GJ_TSAN)
char launch_begin, launch_end, block_end;  // what happens before and after a launch, for the sanitizer
#endif

[[noreturn]] void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("gradjury kernel: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::fflush(stderr);
  std::abort();
}

struct Site {
  const char* file = nullptr;
  int line = 0;
  bool operator!=(const Site& other) const { return file != other.file || line != other.line; }
};

// The lanes of a warp that wait for each other at a shuffle or __syncwarp.
struct Warp {
  int waiting[32];
  int count = 0;
  unsigned arrived = 0, mask = 0, live = 0;
  unsigned generation = 0;
  Site site;
  alignas(16) char slot[2][32][16];
};

// One OS thread's place of work: the block it runs, the fibres and stacks of its CUDA threads. Outlives launches.
struct Worker : Block {
  Thread threads[kMaxThreads];
  void* stack_pointer[kMaxThreads];
  int stack_of[kMaxThreads];
  Site site[kMaxThreads];
  Warp warp[kMaxThreads / 32];
  char* stacks = nullptr;
  std::vector<int> free_stacks;
  int order[kMaxThreads];
  int ready[kRing], head = 0, tail = 0;
  int at_barrier[kMaxThreads], barrier_count = 0;
  int thread_total = 0, next_new = 0, live = 0;
  int last_ended_stack = -1;  // free only once its fibre has been left
  void* main_stack_pointer = nullptr;
  Body body = nullptr;
  void* closure = nullptr;
  bool shuffled = false;
  uint64_t random_state = 1;
  dim3 last_size{0, 0, 0};
#if defined(GJ_TSAN)
  void* fibres[kMaxThreads];
  void* main_fibre = nullptr;
  void* cleaner = nullptr;
  char barrier_tag[2], warp_tag[kMaxThreads / 32][2];
  unsigned barrier_generation = 0;
#endif
#if defined(GJ_ASAN)
  void* fake_stack[kMaxThreads];
  void* main_fake_stack = nullptr;
  const void* main_bottom = nullptr;
  size_t main_size = 0;
#endif

  Worker() {
#if !defined(GJ_TSAN)
    void* memory = mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for %d stacks", kMaxThreads);
    stacks = static_cast<char*>(memory);
    for (int i = 0; i < kMaxThreads; i++) mprotect(stacks + i * kStack, 4096, PROT_NONE);
    arena_size = kArena;
    arena = static_cast<char*>(std::aligned_alloc(4096, kArena));
#endif
  }

  unsigned random(unsigned below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<unsigned>((random_state >> 11) % below);
  }
  void push(int thread) {
    ready[tail] = thread;
    tail = (tail + 1) % kRing;
  }
  int ready_count() const { return (tail - head + kRing) % kRing; }
  int pop() {
    if (shuffled) std::swap(ready[head], ready[(head + random(ready_count())) % kRing]);
    const int thread = ready[head];
    head = (head + 1) % kRing;
    return thread;
  }
  int current_index() const { return static_cast<int>(current - threads); }
};

thread_local Worker* worker = nullptr;

void fibre_main();

// Leaves `from` (kMain: the worker's own stack) for `to`.
void switch_to(void** save, [[maybe_unused]] int from, int to) {
  Worker* w = worker;
#if defined(GJ_TSAN)
  __tsan_switch_to_fiber(to == kMain ? w->main_fibre : w->fibres[to], 1);
#endif
#if defined(GJ_ASAN)
  void** fake = from == kMain ? &w->main_fake_stack : &w->fake_stack[from];
  if (to == kMain)
    __sanitizer_start_switch_fiber(fake, w->main_bottom, w->main_size);
  else
    __sanitizer_start_switch_fiber(fake, w->stacks + w->stack_of[to] * kStack, kStack);
#endif
  w->current = to == kMain ? nullptr : &w->threads[to];
  gradjury_switch(save, to == kMain ? w->main_stack_pointer : w->stack_pointer[to]);
#if defined(GJ_ASAN)
  const bool main = from == kMain;
  __sanitizer_finish_switch_fiber(
      main ? w->main_fake_stack : w->fake_stack[from], main ? &w->main_bottom : nullptr, main ? &w->main_size : nullptr);
#endif
}

// Gives the next CUDA thread that has not started a stack; returns its number.
int start_thread(Worker* w) {
  const int thread = w->order[w->next_new++];
  const int stack = w->free_stacks.back();
  w->free_stacks.pop_back();
  w->stack_of[thread] = stack;
  w->stack_pointer[thread] = new_context(w->stacks + (stack + 1) * kStack - (stack * kColour) % (kStack / 4), fibre_main);
  return thread;
}

// The CUDA thread to run next, kMain if none can.
int pick(Worker* w) {
  const bool fresh = w->next_new < w->thread_total;
  const int waiting = w->ready_count();
  if (waiting && (!fresh || !w->shuffled || w->random(2))) return w->pop();
  if (fresh) return start_thread(w);
  return waiting ? w->pop() : kMain;
}

[[noreturn]] void deadlock(Worker* w) {
  std::fprintf(
      stderr, "gradjury kernel: deadlock in block (%u,%u,%u): %d live threads, %d wait at __syncthreads\n", w->index.x, w->index.y,
      w->index.z, w->live, w->barrier_count);
  int shown = 0;
  for (int t = 0; t < w->thread_total && shown < 6; t++)
    if (w->site[t].file) std::fprintf(stderr, "  thread %d waits at %s:%d\n", t, w->site[t].file, w->site[t].line), shown++;
  std::abort();
}

void release_barrier(Worker* w) {
  for (int i = 0; i < w->barrier_count; i++) w->push(w->at_barrier[i]);
  w->barrier_count = 0;
#if defined(GJ_TSAN)
  w->barrier_generation++;
#endif
}

void release_warp(Worker* w, Warp& warp, int except) {
  for (int i = 0; i < warp.count; i++)
    if (warp.waiting[i] != except) w->push(warp.waiting[i]);
  warp.count = 0;
  warp.arrived = 0;
  warp.generation++;
}

void wait_turn(Worker* w, int me) {
  const int next = pick(w);
  if (next == kMain) deadlock(w);
  if (next != me) switch_to(&w->stack_pointer[me], me, next);
}

// A thread has ended: it holds back neither its warp nor a barrier.
void end_thread(Worker* w, int thread) {
  w->live--;
  Warp& warp = w->warp[thread / 32];
  warp.live &= ~(1u << (thread % 32));
  if (warp.count && !(warp.mask & warp.live & ~warp.arrived)) release_warp(w, warp, -1);
  if (w->barrier_count && w->barrier_count == w->live) release_barrier(w);
}

// Where every fibre begins: runs its CUDA thread, and then on the same stack any thread that has not started yet.
void fibre_main() {
  Worker* w = worker;
#if defined(GJ_ASAN)
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (!w->main_bottom) w->main_bottom = bottom, w->main_size = size;
#endif
  for (;;) {
    const int thread = w->current_index();
#if defined(GJ_TSAN)
    __tsan_acquire(&launch_begin);
#endif
    w->body(w->closure);
#if defined(GJ_TSAN)
    __tsan_release(&launch_end);
    __tsan_release(&block_end);
#endif
    end_thread(w, thread);
#if !defined(GJ_TSAN) && !defined(GJ_ASAN)
    if (w->next_new < w->thread_total && (!w->ready_count() || w->shuffled)) {
      const int next = w->order[w->next_new++];
      w->stack_of[next] = w->stack_of[thread];
      w->current = &w->threads[next];
      continue;
    }
#endif
#if !defined(GJ_TSAN)  // to ThreadSanitizer, which knows of no order between fibres, a stack used again would be a race
    if (w->last_ended_stack >= 0) w->free_stacks.push_back(w->last_ended_stack);
    w->last_ended_stack = w->stack_of[thread];
#endif
    const int next = pick(w);
    if (next == kMain && w->live) deadlock(w);
#if defined(GJ_ASAN)
    if (next == kMain)
      __sanitizer_start_switch_fiber(nullptr, w->main_bottom, w->main_size);
    else
      __sanitizer_start_switch_fiber(nullptr, w->stacks + w->stack_of[next] * kStack, kStack);
#endif
#if defined(GJ_TSAN)
    __tsan_switch_to_fiber(next == kMain ? w->main_fibre : w->fibres[next], 1);
#endif
    w->current = next == kMain ? nullptr : &w->threads[next];
    void* abandoned;
    gradjury_switch(&abandoned, next == kMain ? w->main_stack_pointer : w->stack_pointer[next]);
  }
}

void prepare_threads(Worker* w, dim3 size) {
  const int total = w->thread_total;
  if (w->last_size.x != size.x || w->last_size.y != size.y || w->last_size.z != size.z) {
    for (int i = 0; i < total; i++) {
      const unsigned u = static_cast<unsigned>(i);
      w->threads[i] = {{u % size.x, u / size.x % size.y, u / (size.x * size.y)}, u};
      w->site[i] = {};
    }
    w->last_size = size;
  }
  for (int i = 0; i < total; i++) w->order[i] = i;
  if (w->shuffled)
    for (int i = total - 1; i > 0; i--) std::swap(w->order[i], w->order[w->random(i + 1)]);
  for (int i = 0; i < (total + 31) / 32; i++) {
    const int lanes = std::min(32, total - 32 * i);
    w->warp[i].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w->warp[i].count = 0;
    w->warp[i].arrived = 0;
  }
  w->live = total;
  w->next_new = w->head = w->tail = w->barrier_count = 0;
  w->shared_count = 0;
  w->arena_used = 0;
  w->last_ended_stack = -1;
  w->free_stacks.resize(total);
  for (int i = 0; i < total; i++) w->free_stacks[i] = total - 1 - i;
}

#if defined(GJ_TSAN)
// Fresh stacks and shared memory for each block: an address that is used again is no race. Blocks learn nothing of each
// other until the launch ends.
void prepare_sanitizer(Worker* w) {
  w->stacks = static_cast<char*>(std::malloc(w->thread_total * kStack + 8192));
  w->arena_size = kArena;
  w->arena = static_cast<char*>(std::malloc(w->arena_size));
  for (int t = 0; t < w->thread_total; t++) w->fibres[t] = __tsan_create_fiber(0);
  if (!w->cleaner) w->cleaner = __tsan_create_fiber(0);
}

void clean_sanitizer(Worker* w) {
  for (int t = 0; t < w->thread_total; t++) __tsan_destroy_fiber(w->fibres[t]);
  __tsan_switch_to_fiber(w->cleaner, 1);
  __tsan_acquire(&launch_begin);
  __tsan_acquire(&block_end);
  std::free(w->stacks);
  std::free(w->arena);
  __tsan_switch_to_fiber(w->main_fibre, 1);
}
#endif

void run_block(Worker* w, uint3 index, dim3 grid, dim3 size, Body body, void* closure) {
  w->thread_total = static_cast<int>(size.x * size.y * size.z);
  w->index = index;
  w->grid = grid;
  w->size = size;
  w->body = body;
  w->closure = closure;
  prepare_threads(w, size);
#if defined(GJ_TSAN)
  prepare_sanitizer(w);
#endif
  if (w->shuffled) {
    std::memset(w->arena, 0xff, w->arena_size);  // every float and double in it is NaN
#if defined(GJ_TSAN)
    __tsan_release(&launch_begin);
#endif
  }
#if defined(GJ_ASAN)
  __asan_poison_memory_region(w->arena, w->arena_size);
  w->main_bottom = nullptr;
#endif
  switch_to(&w->main_stack_pointer, kMain, start_thread(w));
#if defined(GJ_ASAN)
  __asan_unpoison_memory_region(w->arena, w->arena_size);
#endif
#if defined(GJ_TSAN)
  clean_sanitizer(w);
#endif
}

std::mutex idle_mutex;
std::vector<Worker*>& idle_workers = *new std::vector<Worker*>;

// Borrows a worker for the time of a launch; nested use is restored.
struct Lease {
  Worker* previous = worker;
  Lease() {
    std::lock_guard<std::mutex> guard(idle_mutex);
    if (idle_workers.empty()) {
      worker = new Worker;
    } else {
      worker = idle_workers.back();
      idle_workers.pop_back();
    }
    block = worker;
  }
  ~Lease() {
    std::lock_guard<std::mutex> guard(idle_mutex);
    idle_workers.push_back(worker);
    worker = previous;
    block = previous;
  }
};

struct Launch {
  dim3 grid, size;
  Body body;
  void* closure;
  long total, seed;
  std::atomic<long> next{0};

  // The block to run as the i-th: with a seed, a permutation of all.
  long position(long i) const {
    const bool permutes = seed >= 0 && total % 7919 != 0;
    return permutes ? static_cast<long>((i * 7919ull + seed * 104729ull) % total) : i;
  }

  void work() {
    Lease lease;
    Worker* w = worker;
    w->shuffled = seed >= 0;
#if defined(GJ_TSAN)
    w->main_fibre = __tsan_get_current_fiber();
#endif
    for (long i; (i = next.fetch_add(1, std::memory_order_relaxed)) < total;) {
      if (seed >= 0) w->random_state = (static_cast<uint64_t>(seed + 1) * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull) | 1;
      const unsigned long b = position(i);
      const uint3 index = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / (size_t(grid.x) * grid.y))};
      run_block(w, index, grid, size, body, closure);
    }
  }
};

// OS threads kept between launches. A child after fork() starts afresh: it has none of its parent's threads.
class Pool {
 public:
  void run(int count, Launch* launch) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      while (static_cast<int>(threads_.size()) < count - 1) {
        const int id = static_cast<int>(threads_.size());
        threads_.emplace_back([this, id] { loop(id); });
      }
      launch_ = launch;
      wanted_ = left_ = count - 1;
      generation_++;
    }
    wake_.notify_all();
    launch->work();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
  }

  static Pool& of_this_process() {
    static Pool* pool = nullptr;
    static pid_t owner = 0;
    if (!pool || owner != getpid()) {
      pool = new Pool;  // lives until the process ends: its threads wait for work, and exit() ends them
      owner = getpid();
    }
    return *pool;
  }

 private:
  void loop(int id) {
    long seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (id >= wanted_) continue;
      lock.unlock();
      launch_->work();
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Launch* launch_ = nullptr;
  long generation_ = 0;
  int wanted_ = 0, left_ = 0;
};

}  // namespace

void set_threads(int count) { thread_count = count; }
void set_seed(long seed) { order_seed = seed; }

void launch(dim3 grid, dim3 size, Body body, void* closure) {
  const long threads = static_cast<long>(size.x) * size.y * size.z;
  if (threads < 1 || threads > kMaxThreads) fail("a block of %ld threads: expected 1 to %d", threads, kMaxThreads);
  Launch launch{grid, size, body, closure, static_cast<long>(grid.x) * grid.y * grid.z, order_seed};
  if (launch.total == 0) return;
  int workers = thread_count > 0 ? thread_count : static_cast<int>(std::thread::hardware_concurrency());
  workers = order_seed >= 0 ? 1 : static_cast<int>(std::min<long>(std::max(workers, 1), launch.total));
#if defined(GJ_TSAN)
  __tsan_release(&launch_begin);
#endif
  if (workers == 1)
    launch.work();
  else
    Pool::of_this_process().run(workers, &launch);
#if defined(GJ_TSAN)
  __tsan_acquire(&launch_end);
#endif
}

void block_barrier(const char* file, int line) {
  Worker* w = worker;
  const int me = w->current_index();
#if defined(GJ_TSAN)
  const unsigned generation = w->barrier_generation & 1;
  __tsan_release(&w->barrier_tag[generation]);
#endif
  w->site[me] = {file, line};
  if (w->shuffled && w->barrier_count && w->site[w->at_barrier[0]] != w->site[me]) {
    const Site& other = w->site[w->at_barrier[0]];
    fail("divergent barrier in block (%u,%u,%u): thread %d at %s:%d, thread %d at %s:%d", w->index.x, w->index.y, w->index.z, me,
         file, line, w->at_barrier[0], other.file, other.line);
  }
  if (w->barrier_count + 1 == w->live) {
    release_barrier(w);
    if (w->shuffled) {
      w->push(me);
      wait_turn(w, me);
    }
  } else {
    w->at_barrier[w->barrier_count++] = me;
    wait_turn(w, me);
  }
  w->site[me] = {};
#if defined(GJ_TSAN)
  __tsan_acquire(&w->barrier_tag[generation]);
#endif
}

const void* warp_exchange(unsigned mask, const void* value, unsigned bytes, const char* file, int line) {
  Worker* w = worker;
  const int me = w->current_index();
  const unsigned lane = me % 32;
  Warp& warp = w->warp[me / 32];
  if (!(mask >> lane & 1)) fail("%s:%d: lane %u is not in its own mask %08x", file, line, lane, mask);
  const unsigned generation = warp.generation & 1;
  const Site site{file, line};
  if (warp.count == 0) {
    warp.mask = mask;
    warp.site = site;
  } else if (warp.mask != mask || (w->shuffled && warp.site != site)) {
    fail("divergent warp: %s:%d with mask %08x, %s:%d with mask %08x", file, line, mask, warp.site.file, warp.site.line, warp.mask);
  }
  const volatile char* from = static_cast<const volatile char*>(value);  // volatile: a memcpy would be seen by TSan
  volatile char* to = warp.slot[generation][lane];
  for (unsigned i = 0; i < bytes; i++) to[i] = from[i];
  warp.arrived |= 1u << lane;
#if defined(GJ_TSAN)
  __tsan_release(&w->warp_tag[me / 32][generation]);
#endif
  w->site[me] = site;
  warp.waiting[warp.count++] = me;
  if (warp.mask & warp.live & ~warp.arrived) {
    wait_turn(w, me);
  } else {
    release_warp(w, warp, me);
    if (w->shuffled) {
      w->push(me);
      wait_turn(w, me);
    }
  }
  w->site[me] = {};
#if defined(GJ_TSAN)
  __tsan_acquire(&w->warp_tag[me / 32][generation]);
#endif
  return warp.slot[generation];
}

void warp_barrier(unsigned mask, const char* file, int line) {
  const char nothing = 0;
  warp_exchange(mask, &nothing, 1, file, line);
}

char* shared_memory(const void* key, size_t bytes, size_t align) {
  Worker* w = worker;
  size_t offset = (w->arena_used + align - 1) / align * align;
#if defined(GJ_ASAN)
  offset += kRedZone;
#endif
  if (offset + bytes + kRedZone > w->arena_size) fail("shared memory: %zu bytes wanted, %zu are there", offset + bytes, w->arena_size);
  if (w->shared_count == 16) fail("more than 16 shared arrays in one kernel");
#if defined(GJ_ASAN)
  __asan_unpoison_memory_region(w->arena + offset, bytes);
#endif
  w->arena_used = offset + bytes;
  w->shared[w->shared_count++] = {key, w->arena + offset};
  return w->arena + offset;
}

}  // namespace fibre
