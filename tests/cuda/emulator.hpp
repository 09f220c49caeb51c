// Enough of CUDA for the kernels of voicechat_mlx/nn/cuda to run on a CPU: a block's threads are fibers that take turns,
// and give way only where they must wait for each other, at barriers and shuffles. Blocks run one after another or, where
// they meet (TOGETHER), each in a thread of the machine.
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

using std::max;
using std::min;

#define SHOWN __attribute__((visibility("default")))
#ifdef __clang__
#define OPAQUE __attribute__((noinline, optnone))
#else
#define OPAQUE __attribute__((noipa))
#endif
#define __device__
#define __global__
#ifdef TOGETHER
#define LOCAL static thread_local
#else
#define LOCAL static
#endif
#define __shared__ LOCAL
#define __restrict__
#define __launch_bounds__(...)
#define EMULATED
#define RELAX() sched_yield()

struct uint3 {
  unsigned x, y, z;
};
struct alignas(4) uint4 {
  unsigned x, y, z, w;
};
struct alignas(4) uint2 {
  unsigned x, y;
};
struct alignas(4) float4 {
  float x, y, z, w;
};
LOCAL uint3 threadIdx, blockIdx, blockDim, gridDim;

struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float value) {
    uint32_t whole;
    std::memcpy(&whole, &value, 4);
    bits = static_cast<uint16_t>((whole + 0x7fff + ((whole >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &whole, 4);
    return value;
  }
};

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __uint_as_float(unsigned bits) {
  return __int_as_float(static_cast<int>(bits));
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
template <typename T>
T __ldg(const T* place) {
  return *place;
}
template <typename T>
T __ldcs(const T* place) {
  return *place;
}
template <typename T>
T __ldcg(const T* place) {
  return *place;
}
inline unsigned add_release(unsigned* place, unsigned value) {
  return __atomic_fetch_add(place, value, __ATOMIC_ACQ_REL);
}
inline unsigned load_acquire(const unsigned* place) {
  return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

// A fiber begins in a context of its own; from then on the two sides jump, which needs no system call.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack;
  bool begun, done, waiting;
};
LOCAL std::vector<Fiber> fibers;
LOCAL jmp_buf scheduler;
LOCAL unsigned current;
LOCAL bool lanes_meet;  // what the current fiber waits for: its warp, or its block
LOCAL unsigned exchanged[2][1024];
LOCAL unsigned char turns[1024];

// The others change everything meanwhile: the compiler must not know better.
OPAQUE void wait_for(bool warp_only) {
  fibers[current].waiting = true;
  lanes_meet = warp_only;
  if (!_setjmp(fibers[current].place)) {
    _longjmp(scheduler, 1);
  }
}
inline void __syncthreads() {
  wait_for(false);
}
inline void __syncwarp(unsigned = 0xffffffffu) {
  wait_for(true);
}
// Lanes take two places in turn: none can be ahead by more than one exchange.
template <typename T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  static_assert(sizeof(T) == 4);
  unsigned(*const places)[1024] = exchanged + (turns[threadIdx.x] ^= 1);
  std::memcpy(&(*places)[threadIdx.x], &value, 4);
  wait_for(true);
  T other;
  std::memcpy(&other, &(*places)[threadIdx.x ^ lanes], 4);
  return other;
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  static_assert(sizeof(T) == 4);
  unsigned(*const places)[1024] = exchanged + (turns[threadIdx.x] ^= 1);
  std::memcpy(&(*places)[threadIdx.x], &value, 4);
  wait_for(true);
  T other;
  std::memcpy(&other, &(*places)[threadIdx.x / 32 * 32 + lane], 4);
  return other;
}
// Ends where a page ends that nobody may touch.
struct Guarded {
  size_t page = sysconf(_SC_PAGESIZE), size = (SHARED_BYTES + page - 1) / page * page;
  char* begin = static_cast<char*>(mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Guarded() {
    mprotect(begin + size, page, PROT_NONE);
  }
  ~Guarded() {
    munmap(begin, size + page);
  }
};
#define DYNAMIC_SHARED(type, name) \
  LOCAL Guarded guarded;           \
  type* const name = reinterpret_cast<type*>(guarded.begin + guarded.size - SHARED_BYTES)
// Done as late as may be: what nobody has waited for is not there.
struct Copy {
  uint4* to;
  uint4 what;
};
LOCAL std::vector<Copy> copies[1024];
inline void copy_behind(uint4* to, const uint4* from) {
  *to = {0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0};
  copies[threadIdx.x].push_back({to, *from});
}
inline void wait_for_copies() {
  for (const Copy& copy : copies[threadIdx.x]) {
    *copy.to = copy.what;
  }
  copies[threadIdx.x].clear();
}
inline unsigned masked(unsigned x, unsigned mask, unsigned bits) {
  return (x & mask) | bits;
}
// A tensor core, as the documentation of mma.m16n8k16 lays out its fragments.
LOCAL unsigned fragments[2][1024][6];
inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  auto& held = fragments[turns[threadIdx.x] ^= 1];
  std::copy(a, a + 4, held[threadIdx.x]);
  std::copy(b, b + 2, held[threadIdx.x] + 4);
  wait_for(true);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane;
  auto half = [&](unsigned from, unsigned reg, unsigned k) {
    return __uint_as_float(held[warp + from][reg] >> (k % 2 * 16) << 16);
  };
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; k++) {
      const unsigned at = k % 8 / 2;
      c[i] += half(row % 8 * 4 + at, row / 8 + k / 8 * 2, k) * half(column * 4 + at, 4 + k / 8, k);
    }
  }
}

// Lets a fiber run until it waits or ends.
__attribute__((noinline)) static void resume(unsigned index) {
  current = index;
  threadIdx = {index, 0, 0};
  if (_setjmp(scheduler)) {
    return;
  }
  if (fibers[index].begun) {
    _longjmp(fibers[index].place, 1);
  }
  fibers[index].begun = true;
  setcontext(&fibers[index].context);
}

// Runs `body` as `threads` fibers for one block.
template <typename Body>
void run_block(unsigned block, unsigned blocks, unsigned threads, Body body) {
  LOCAL Body* running;
  running = &body;
  blockDim = {threads, 1, 1};
  gridDim = {blocks, 1, 1};
  blockIdx = {block, 0, 0};
  std::vector<char> meets(threads);
  const size_t known = fibers.size();
  fibers.resize(max<size_t>(known, threads));
  for (size_t i = known; i < threads; i++) {  // each runs the body again whenever it is resumed after its end
    Fiber& fiber = fibers[i];
    fiber.stack.resize(1 << 16);
    fiber.begun = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(+[] {
      for (;;) {
        (*running)();
        fibers[current].done = true;
        if (!_setjmp(fibers[current].place)) {
          _longjmp(scheduler, 1);
        }
      }
    }), 0);
  }
  for (unsigned i = 0; i < threads; i++) {
    fibers[i].done = fibers[i].waiting = false;
  }
  for (bool alive = true; alive;) {
    alive = false;
    for (unsigned i = 0; i < threads; i++) {
      if (!fibers[i].done && !fibers[i].waiting) {
        resume(i);
        meets[i] = lanes_meet;
      }
      alive = alive || !fibers[i].done;
    }
    bool whole_block = true;
    for (unsigned i = 0; i < threads; i++) {
      whole_block = whole_block && (fibers[i].done || !meets[i]);
    }
    for (unsigned first = 0; first < threads; first += 32) {
      const unsigned end = min(first + 32, threads);
      bool whole_warp = true;
      for (unsigned i = first; i < end; i++) {
        whole_warp = whole_warp && (fibers[i].done || meets[i]);
      }
      for (unsigned i = first; i < end; i++) {
        fibers[i].waiting = fibers[i].waiting && !whole_warp && !whole_block;
      }
    }
  }
}

template <typename Body>
void launch(unsigned blocks, unsigned threads, Body body) {
#ifdef TOGETHER
  std::vector<std::thread> together;
  for (unsigned block = 0; block < blocks; block++) {
    together.emplace_back([=] { run_block(block, blocks, threads, body); });
  }
  for (std::thread& each : together) {
    each.join();
  }
#else
  for (unsigned block = 0; block < blocks; block++) {
    run_block(block, blocks, threads, body);
  }
#endif
}
