// One step of a residual block for R rows of K numbers each:
//     out = residual + (½) act(W norm(s) + bias),   s = x, or x + y, or x + norm(y) · post, or, with PRE, LayerNorm(x)
// y may be ONE row for all of them; `sum` receives s, or norm(s) with NORMED. W (N, K) is dense, or packed in BITS bits with
// a scale and an offset per GROUP. A step is described by a struct, its numbers are template arguments.
//
// A tile is 8 warps × PER outputs of every row; a block takes the tiles blockIdx.x, blockIdx.x + gridDim.x, …. A lane reads
// weights 16 bytes at a time, DEPTH of them ahead of their use, across tiles too, and the first ones before the blocks have
// met: until then the inputs may still be in the making, the weights never are.
template <typename P>
struct Sizes {
  static constexpr int WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int V = P::BITS ? 128 / (P::BITS + !P::BITS) : 16 / P::WEIGHT_BYTES;  // weights in 16 bytes
  static constexpr int E = 16 / static_cast<int>(sizeof(typename P::T)), U = V / E;      // inputs in 16 bytes; how many such
  static constexpr int COLUMNS = P::K / V, UNITS = P::K / E, MINE = (UNITS + THREADS - 1) / THREADS;
  static constexpr int READS = (COLUMNS + 31) / 32;  // of 16 bytes, by a lane, in a row of weights
  static constexpr int ROWS = P::PAIRED ? 2 * P::PER : P::PER, OUT = P::PAIRED ? P::N / 2 : P::N;
  static constexpr int TILES = (OUT + WARPS * P::PER - 1) / (WARPS * P::PER);

  // As many reads in flight as do not fill the registers; the last of a row may be idle, as few as possible.
  __device__ static constexpr int depth() {
    const int most = ROWS >= P::AHEAD ? 1 : P::AHEAD / ROWS;
    int best = READS < most ? READS : most;
    for (int d = best - 1; 2 * d > most; d--) {
      if ((READS + d - 1) / d * d < (READS + best - 1) / best * best) {
        best = d;
      }
    }
    return best;
  }
  static constexpr int DEPTH = depth(), STEPS = (READS + DEPTH - 1) / DEPTH * DEPTH;
};

template <bool WHOLE>
struct Piece {
  using Type = uint4;
};
template <>
struct Piece<false> {
  using Type = uint2;
};

// A parameter for each number of a row, as it lies in memory; the same thread has the same places as in a `Row`.
template <typename P, typename A>
struct Parameters {
  using S = Sizes<P>;
  static constexpr int BYTES = S::E * static_cast<int>(sizeof(A));
  using Part = typename Piece<BYTES >= 16>::Type;
  static constexpr int PIECES = BYTES / static_cast<int>(sizeof(Part));
  Part packed[S::MINE][PIECES];

  __device__ void read(const A* source) {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      const int unit = min(static_cast<int>(threadIdx.x) + i * S::THREADS, S::UNITS - 1);
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        packed[i][j] = __ldg(reinterpret_cast<const Part*>(source) + unit * PIECES + j);
      }
    }
  }
  __device__ float at(int i, int e) const {
    return up(reinterpret_cast<const A*>(packed[i])[e]);
  }
};

// A row's numbers in registers, MINE pieces of 16 bytes a thread. What other blocks have just written comes from L2.
template <typename P>
struct Row {
  using S = Sizes<P>;
  using T = typename P::T;
  float numbers[S::MINE][S::E];

  __device__ static bool has(int i) {
    return threadIdx.x + i * S::THREADS < S::UNITS;
  }
  __device__ static int unit(int i) {
    return threadIdx.x + i * S::THREADS;
  }
  __device__ void read(const T* source) {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      uint4 packed = {0, 0, 0, 0};
      if (has(i)) {
        packed = __ldcg(reinterpret_cast<const uint4*>(source) + unit(i));
      }
#pragma unroll
      for (int e = 0; e < S::E; e++) {
        numbers[i][e] = up(reinterpret_cast<const T*>(&packed)[e]);
      }
    }
  }
  __device__ uint4 rounded(int i) const {
    uint4 packed;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
      reinterpret_cast<T*>(&packed)[e] = static_cast<T>(numbers[i][e]);
    }
    return packed;
  }
  // Eight numbers as tensor cores take them: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
  __device__ uint4 paired(int i) const {
    uint4 packed;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
      reinterpret_cast<T*>(&packed)[e] = static_cast<T>(numbers[i][e % 2 * (S::E / 2) + e / 2]);
    }
    return packed;
  }
  // What storing and reading again would leave.
  __device__ void round() {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
#pragma unroll
      for (int e = 0; e < S::E; e++) {
        numbers[i][e] = up(static_cast<T>(numbers[i][e]));
      }
    }
  }
  __device__ float mean() const {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      if (has(i)) {
#pragma unroll
        for (int e = 0; e < S::E; e++) {
          total += numbers[i][e];
        }
      }
    }
    return block_sum(total) / P::K;
  }
  // 1 / √(mean of (x - center)² + eps).
  __device__ float inverse_deviation(float center, int eps) const {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      if (has(i)) {
#pragma unroll
        for (int e = 0; e < S::E; e++) {
          squares += (numbers[i][e] - center) * (numbers[i][e] - center);
        }
      }
    }
    return rsqrtf(block_sum(squares) / P::K + __int_as_float(eps));
  }
  template <typename A>
  __device__ void scale(float center, float inverse, const Parameters<P, A>& weight) {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
#pragma unroll
      for (int e = 0; e < S::E; e++) {
        numbers[i][e] = (numbers[i][e] - center) * inverse * weight.at(i, e);
      }
    }
  }
  template <typename A, typename B>
  __device__ void layer_norm(int eps, const Parameters<P, A>& weight, const Parameters<P, B>& bias) {
    const float center = mean();
    scale(center, inverse_deviation(center, eps), weight);
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
#pragma unroll
      for (int e = 0; e < S::E; e++) {
        numbers[i][e] += bias.at(i, e);
      }
    }
  }
  // Eight units are a group of 64: the lanes that have them add up what the product will read.
  __device__ void sum_of_groups(int i, float* sums) const {
    float total = 0.0f;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
      total += has(i) ? up(static_cast<T>(numbers[i][e])) : 0.0f;
    }
    for (int step = 1; step < 8; step *= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, step);
    }
    if (has(i) && threadIdx.x % 8 == 0) {
      sums[unit(i) / 8] = total;
    }
  }
  // RMS within each of GROUPS parts of the row; `partial` has room for a float a unit.
  template <typename A>
  __device__ void grouped_norm(const Parameters<P, A>& weight, float* partial) {
    constexpr int SHARE = S::UNITS / P::GROUPS;
    static_assert(SHARE * P::GROUPS == S::UNITS, "a group is whole units");
    __shared__ float inverses[P::GROUPS];
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      if (has(i)) {
        float squares = 0.0f;
#pragma unroll
        for (int e = 0; e < S::E; e++) {
          squares += numbers[i][e] * numbers[i][e];
        }
        partial[unit(i)] = squares;
      }
    }
    __syncthreads();
    for (int group = threadIdx.x / 32; group < P::GROUPS; group += S::WARPS) {
      float squares = 0.0f;
      for (int i = threadIdx.x % 32; i < SHARE; i += 32) {
        squares += partial[group * SHARE + i];
      }
      squares = warp_sum(squares);
      if (threadIdx.x % 32 == 0) {
        inverses[group] = rsqrtf(squares / (P::K / P::GROUPS) + __int_as_float(P::EPS));
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      const float inverse = has(i) ? inverses[unit(i) / SHARE] : 0.0f;
#pragma unroll
      for (int e = 0; e < S::E; e++) {
        numbers[i][e] *= inverse * weight.at(i, e);
      }
    }
  }
};

// What the norms of a step multiply by and add.
template <typename P, typename NW, typename NB, typename PW, typename PB>
struct NormParameters {
  Parameters<P, NW> weight;
  Parameters<P, NB> bias;
  Parameters<P, PW> post;
  Parameters<P, PB> pre_bias;

  __device__ void read(const NW* norm_weight, const NB* norm_bias, const PW* post_weight, const PB* first_bias) {
    if (P::POST || P::PRE) {
      post.read(post_weight);
    }
    if (P::PRE) {
      pre_bias.read(first_bias);
    }
    if (P::NORM) {
      weight.read(norm_weight);
    }
    if (P::NORM == 2) {
      bias.read(norm_bias);
    }
  }
};

// x → s → norm(s), as the product takes it, into `held`; s, if it is not x, into `sum`. For tensor cores also the sums of
// every 64 numbers, behind them.
template <typename P, typename NW, typename NB, typename PW, typename PB>
__device__ void prepare(
    uint4* held, const typename P::T* x, const typename P::T* y, const NormParameters<P, NW, NB, PW, PB>& parameters,
    typename P::T* sum) {
  using S = Sizes<P>;
  if (P::TENSOR && threadIdx.x < 8) {
    held[S::UNITS + threadIdx.x] = {0, 0, 0, 0};
  }
  if (P::TENSOR && threadIdx.x == 8) {
    reinterpret_cast<float*>(held + S::UNITS + 8)[P::K / 64] = 0.0f;
  }
  for (int q = 0; q < P::R; q++) {
    uint4* const place = held + q * S::READS * 32 * S::U;
    Row<P> row;
    row.read(x + q * P::K);
    if (P::ADD) {
      Row<P> other;
      other.read(y + (P::ONE ? 0 : q * P::K));
      if (P::POST) {
        other.scale(0.0f, other.inverse_deviation(0.0f, P::EPS), parameters.post);
      }
#pragma unroll
      for (int i = 0; i < S::MINE; i++) {
#pragma unroll
        for (int e = 0; e < S::E; e++) {
          row.numbers[i][e] += other.numbers[i][e];
        }
      }
    }
    if (P::PRE) {
      row.layer_norm(P::EPS, parameters.post, parameters.pre_bias);
    }
    if (P::ADD || P::PRE) {
      row.round();
    }
    auto keep = [&] {
      for (int i = 0; i < S::MINE; i++) {
        if (row.has(i)) {
          reinterpret_cast<uint4*>(sum)[q * S::UNITS + row.unit(i)] = row.rounded(i);
        }
      }
    };
    if ((P::ADD || P::PRE) && !P::NORMED && blockIdx.x == 0) {
      keep();
    }
    if (P::NORM == 1) {
      row.scale(0.0f, row.inverse_deviation(0.0f, P::EPS), parameters.weight);
    } else if (P::NORM == 2) {
      row.layer_norm(P::EPS, parameters.weight, parameters.bias);
    } else if (P::NORM == 3) {
      row.grouped_norm(parameters.weight, reinterpret_cast<float*>(place));
    }
    if (P::NORMED && blockIdx.x == 0) {
      keep();
    }
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
      if (row.has(i)) {
        if (P::SILU) {
#pragma unroll
          for (int e = 0; e < S::E; e++) {
            row.numbers[i][e] /= 1.0f + expf(-row.numbers[i][e]);
          }
        }
        const int unit = row.unit(i), rest = unit % (32 * S::U);  // neighbouring lanes shall read neighbouring 16 bytes
        if (P::TENSOR) {
          place[unit] = row.paired(i);
        } else {
          place[(unit / (32 * S::U) * S::U + rest % S::U) * 32 + rest / S::U] = row.rounded(i);
        }
      }
      if (P::TENSOR) {
        row.sum_of_groups(i, reinterpret_cast<float*>(held + S::UNITS + 8));
      }
    }
  }
  __syncthreads();
}

template <int ACT>
__device__ float activated(float value, float partner) {
  if (ACT == 1) {
    return value / (1.0f + expf(-value));
  }
  if (ACT == 2) {
    return value > 0.0f ? value * value : 0.0f;
  }
  if (ACT == 3) {
    return value / (1.0f + expf(-value * (1.5957691216f + 0.0713548163f * value * value))) * partner;
  }
  if (ACT == 4) {
    return value / (1.0f + expf(-partner));
  }
  return value;
}

// A number that is ready, as it goes out: with its bias, activation and residual.
template <typename P, typename B>
__device__ typename P::T finished(float value, float partner, float kept, const B* bias, int place) {
  using T = typename P::T;
  if (P::BIAS) {
    value = up(static_cast<T>(value + up(bias[place])));
    partner = P::PAIRED ? up(static_cast<T>(partner + up(bias[place + P::N / 2]))) : 0.0f;
  }
  value = activated<P::ACT>(value, partner);
  return static_cast<T>(P::RESIDUAL ? kept + (P::HALF ? 0.5f : 1.0f) * value : value);
}

template <
    typename P, typename Meet, typename W, typename SC, typename NW, typename NB, typename PW, typename PB, typename B>
__device__ void product(
    uint4* held, Meet& meet, const typename P::T* x, const typename P::T* y, const typename P::T* residual, const W* w,
    const SC* scales, const SC* offsets, const NW* norm_weight, const NB* norm_bias, const PW* post, const PB* pre_bias,
    const B* bias, typename P::T* out, typename P::T* sum) {
  using S = Sizes<P>;
  using T = typename P::T;
  constexpr int PER = P::PER, ROWS = S::ROWS, OUT = S::OUT, DEPTH = S::DEPTH, BITS = P::BITS, R = P::R;
  static_assert(R * PER <= 32, "a lane writes one output");
  constexpr unsigned MASK = BITS ? (1u << BITS) - 1 : 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint4* rows[ROWS];  // of the tile that is being loaded
  const SC *row_scales[ROWS], *row_offsets[ROWS];
  uint4 weights[DEPTH][ROWS];
  SC scale[DEPTH][ROWS], offset[DEPTH][ROWS];
  int loading = blockIdx.x;
  auto turn_to = [&](int tile) {
    loading = tile;
    const int first = (tile * S::WARPS + warp) * PER;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const size_t row = min(r < PER ? first + r : OUT + first + r - PER, P::N - 1);
      rows[r] = reinterpret_cast<const uint4*>(w) + row * S::COLUMNS;
      if (BITS) {
        row_scales[r] = scales + row * (P::K / P::GROUP);
        row_offsets[r] = offsets + row * (P::K / P::GROUP);
      }
    }
  };
  auto load = [&](int slot, int step) {
    const int column = step * 32 + lane;
    if (loading < S::TILES && column < S::COLUMNS) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        weights[slot][r] = __ldcs(rows[r] + column);
        if (BITS) {
          scale[slot][r] = row_scales[r][column * S::V / P::GROUP];
          offset[slot][r] = row_offsets[r][column * S::V / P::GROUP];
        }
      }
    }
  };
  meet.arrive();
  turn_to(blockIdx.x);
#pragma unroll
  for (int slot = 0; slot < DEPTH; slot++) {
    load(slot, slot);
  }
  NormParameters<P, NW, NB, PW, PB> parameters;
  parameters.read(norm_weight, norm_bias, post, pre_bias);
  meet.wait();
  prepare(held, x, y, parameters, sum);

  for (int tile = blockIdx.x; tile < S::TILES; tile += gridDim.x) {
    const int mine = (tile * S::WARPS + warp) * PER + lane % PER;  // the output that this lane will write, of row lane / PER
    const bool writes = lane < R * PER && mine < OUT;
    const float kept = P::RESIDUAL && writes ? up(fresh(residual + (lane / PER) * OUT + mine)) : 0.0f;
    float sums[R][ROWS] = {};
    for (int begin = 0; begin < S::STEPS; begin += DEPTH) {
      const bool last = begin + DEPTH == S::STEPS;
      if (last) {
        turn_to(tile + gridDim.x);
      }
#pragma unroll
      for (int slot = 0; slot < DEPTH; slot++) {
        const int step = begin + slot;
        if (step * 32 + lane < S::COLUMNS) {
#pragma unroll
          for (int q = 0; q < R; q++) {
            float total = 0.0f, dots[ROWS] = {};
#pragma unroll
            for (int j = 0; j < S::U; j++) {
              const uint4 packed = held[((q * S::READS + step) * S::U + j) * 32 + lane];
#pragma unroll
              for (int e = 0; e < S::E; e++) {
                const float input = up(reinterpret_cast<const T*>(&packed)[e]);
                const int i = j * S::E + e;
                total += input;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                  if (BITS) {
                    const unsigned word = reinterpret_cast<const unsigned*>(&weights[slot][r])[i * BITS / 32];
                    const unsigned whole = (word >> (i * BITS % 32)) & MASK;
                    dots[r] += (__uint_as_float(0x4b000000u | whole) - 8388608.0f) * input;  // 2^23 + whole, less 2^23
                  } else {
                    dots[r] += up(reinterpret_cast<const W*>(&weights[slot][r])[i]) * input;
                  }
                }
              }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
              sums[q][r] += BITS ? up(scale[slot][r]) * dots[r] + up(offset[slot][r]) * total : dots[r];
            }
          }
        }
        load(slot, last ? slot : step + DEPTH);
      }
    }
    float value = 0.0f, partner = 0.0f;
#pragma unroll
    for (int q = 0; q < R; q++) {
#pragma unroll
      for (int r = 0; r < PER; r++) {
        const float total = warp_sum(sums[q][r]);
        const float other = P::PAIRED ? warp_sum(sums[q][ROWS - PER + r]) : 0.0f;
        if (lane == q * PER + r) {
          value = up(static_cast<T>(total));
          partner = up(static_cast<T>(other));
        }
      }
    }
    if (writes) {
      out[(lane / PER) * OUT + mine] = finished<P>(value, partner, kept, bias, mine);
    }
  }
}
