// Shared by every kernel here. Numbers are accumulated in float32 whatever they are stored in.
#define ENDLESS __int_as_float(0x7f800000)

#ifndef EMULATED
// Rounds to nearest, ties to even, as MLX does.
struct alignas(2) bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ explicit bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const unsigned whole = __float_as_uint(value);
    bits = static_cast<unsigned short>(value == value ? (whole + 0x7fff + (whole >> 16 & 1)) >> 16 : 0x7fff);
#endif
  }
  __device__ explicit operator float() const {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
};
#endif

template <typename T>
__device__ float up(T x) {
  return static_cast<float>(x);
}

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

// The sum over a block of at most 32 warps, known to every thread.
__device__ inline float block_sum(float x) {
  __shared__ float sums[32];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; warp++) {
    total += sums[warp];
  }
  return total;
}

// The highest of a warp's scores and its index, known to every lane; equal scores go to the lower index.
__device__ inline void warp_best(float& score, int& index) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, score, step);
    const int other_index = __shfl_xor_sync(0xffffffffu, index, step);
    if (other > score || (other == score && other_index < index)) {
      score = other;
      index = other_index;
    }
  }
}

// The highest of the warps' scores and its index, known to every thread; equal scores go to the lower index. All lanes
// of a warp hold the same.
template <int WARPS>
__device__ void block_best(float& score, int& index) {
  __shared__ float scores[WARPS];
  __shared__ int indices[WARPS];
  if (threadIdx.x % 32 == 0) {
    scores[threadIdx.x / 32] = score;
    indices[threadIdx.x / 32] = index;
  }
  __syncthreads();
  score = scores[0];
  index = indices[0];
  for (int warp = 1; warp < WARPS; warp++) {
    if (scores[warp] > score || (scores[warp] == score && indices[warp] < index)) {
      score = scores[warp];
      index = indices[warp];
    }
  }
}

// Every warp holds a softmax mean over its own keys: their joint mean, written by the whole block.
template <int WARPS, int D, typename T>
__device__ void join_means(
    float* maxima, float* totals, float (*means)[D], float maximum, float total, const float* mean, T* out) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = 0; lane + 32 * i < D; i++) {
    means[warp][lane + 32 * i] = mean[i];
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    totals[warp] = total;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < D; d += blockDim.x) {
    float highest = maxima[0], sum = 0.0f, all = 0.0f;
    for (int i = 1; i < WARPS; i++) {
      highest = fmaxf(highest, maxima[i]);
    }
    for (int i = 0; i < WARPS; i++) {
      const float fade = expf(maxima[i] - highest);
      sum += means[i][d] * fade;
      all += totals[i] * fade;
    }
    out[d] = static_cast<T>(sum / all);
  }
}

// What another block has just written: from L2, and not before it is asked for.
template <typename T>
__device__ T fresh(const T* place) {
  if constexpr (sizeof(T) == 2) {
    const unsigned short raw = __ldcg(reinterpret_cast<const unsigned short*>(place));
    return reinterpret_cast<const T&>(raw);
  } else {
    return __ldcg(place);
  }
}

#ifndef EMULATED
__device__ inline void add_release(unsigned* place, unsigned value) {
  asm volatile("red.add.release.gpu.global.u32 [%0], %1;" : : "l"(place), "r"(value) : "memory");
}
__device__ inline unsigned load_acquire(const unsigned* place) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
  return value;
}
#define RELAX()

// Shared memory of which the launch says how much there is.
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]

// 16 bytes to shared memory, while the thread goes on.
__device__ inline void copy_behind(uint4* to, const uint4* from) {
#if __CUDA_ARCH__ >= 800
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(place), "l"(from) : "memory");
#endif
}
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// (x & mask) | bits, in one instruction.
__device__ inline unsigned masked(unsigned x, unsigned mask, unsigned bits) {
  unsigned found;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(x), "r"(mask), "r"(bits));
  return found;
}

// c (16, 8) += a (16, 16) · b (16, 8) by a warp, in bfloat16 and float32. Of a lane: c of rows lane / 4 and 8 further, columns
// 2 (lane % 4) and the next; a of these rows, b of column lane / 4, each at 2 (lane % 4), the next, and 8 further.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
#endif

// All blocks of a grid meet: none leaves `wait` before the last has come to `arrive`, and what was written before one is
// seen behind the other. All of them must run at once. The word counts who has come, from 0 on.
struct Meeting {
  unsigned* word;
  unsigned awaited = 0;

  __device__ void arrive() {
    __syncthreads();
    awaited += gridDim.x;
    if (threadIdx.x == 0) {
      add_release(word, 1);
    }
  }
  __device__ void wait() {
    if (threadIdx.x == 0) {
      while (load_acquire(word) < awaited) {
        RELAX();
      }
    }
    __syncthreads();
  }
};
struct NoMeeting {
  __device__ void arrive() {}
  __device__ void wait() {}
};

// The words of the next launch's meetings.
__device__ inline void clear(unsigned* words) {
  if (blockIdx.x == 0 && threadIdx.x < 16) {
    words[threadIdx.x] = 0;
  }
}
