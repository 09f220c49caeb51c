// out = residual + (½) act(W norm(s) + bias), s = x or x + y or x + norm(y) · post, for R rows of K numbers each (y may
// have ONE for all of them).
// W (N, K) is dense, or packed in BITS bits with a scale and an offset per GROUP. A warp makes PER outputs of every row.
// Weights are read in steps of 16 bytes a lane and DEPTH steps ahead, the first of them before the norm is known.
constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int V = BITS ? 128 / (BITS + !BITS) : 16 / static_cast<int>(sizeof(W));  // weights in 16 bytes
constexpr int E = 16 / sizeof(T), U = V / E;                                    // inputs in 16 bytes, and how many such
constexpr int STEPS = (K + 32 * V - 1) / (32 * V), COLUMNS = K / V, UNITS = K / E;
constexpr int ROWS = PAIRED ? 2 * PER : PER;
constexpr int DEPTH = STEPS * ROWS <= 8 ? STEPS : ROWS >= 8 ? 1 : 8 / ROWS;
constexpr int MINE = (UNITS + THREADS - 1) / THREADS;
constexpr unsigned MASK = BITS ? (1u << BITS) - 1 : 0;
__shared__ uint4 held[R][STEPS * 32 * U];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int N = w_shape[0], OUT = PAIRED ? N / 2 : N;
const int first = (blockIdx.x * WARPS + warp) * PER;

int rows[ROWS];
for (int r = 0; r < ROWS; r++) {
  rows[r] = min(r < PER ? first + r : OUT + first + r - PER, N - 1);
}
uint4 weights[DEPTH][ROWS];
float scale[DEPTH][ROWS], offset[DEPTH][ROWS];
auto load = [&](int slot, int step) {
  const int column = step * 32 + lane;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (column < COLUMNS) {
      weights[slot][r] = __ldcs(reinterpret_cast<const uint4*>(w) + static_cast<size_t>(rows[r]) * COLUMNS + column);
      if (BITS) {
        const size_t group = static_cast<size_t>(rows[r]) * (K / GROUP) + column * V / GROUP;
        scale[slot][r] = up(scales[group]);
        offset[slot][r] = up(offsets[group]);
      }
    }
  }
};
#pragma unroll
for (int slot = 0; slot < DEPTH; slot++) {
  load(slot, slot);
}
const int mine = first + lane % PER;  // the output that this lane will write, of row lane / PER
const bool writes = lane < R * PER && mine < OUT;
const float kept = RESIDUAL && writes ? up(residual[(lane / PER) * OUT + mine]) : 0.0f;

for (int q = 0; q < R; q++) {
  float row[MINE][E];
  auto read = [&](const T* source, int i, float* target) {
    const int unit = threadIdx.x + i * THREADS;
    uint4 packed = {0, 0, 0, 0};
    if (unit < UNITS) {
      packed = reinterpret_cast<const uint4*>(source)[unit];
    }
    const T* numbers = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int e = 0; e < E; e++) {
      target[e] = up(numbers[e]);
    }
  };
  auto write = [&](uint4* target, int place, const float* numbers) {
    uint4 packed;
    T* rounded = reinterpret_cast<T*>(&packed);
#pragma unroll
    for (int e = 0; e < E; e++) {
      rounded[e] = static_cast<T>(numbers[e]);
    }
    target[place] = packed;
  };
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    read(x + q * K, i, row[i]);
  }
  if (ADD) {
    float other[MINE][E], squares = 0.0f, inverse = 1.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      read(y + (ONE ? 0 : q * K), i, other[i]);
#pragma unroll
      for (int e = 0; e < E; e++) {
        squares += other[i][e] * other[i][e];
      }
    }
    if (POST) {
      inverse = rsqrtf(block_sum(squares) / K + __int_as_float(EPS));
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int unit = threadIdx.x + i * THREADS;
      if (unit < UNITS) {
#pragma unroll
        for (int e = 0; e < E; e++) {
          const float weight = POST ? inverse * up(post[unit * E + e]) : 1.0f;
          row[i][e] = up(static_cast<T>(row[i][e] + other[i][e] * weight));
        }
        if (blockIdx.x == 0) {
          write(reinterpret_cast<uint4*>(sum), q * UNITS + unit, row[i]);
        }
      }
    }
  }
  float mean = 0.0f, inverse = 1.0f;
  if (NORM == 2) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
#pragma unroll
      for (int e = 0; e < E; e++) {
        total += row[i][e];
      }
    }
    mean = block_sum(total) / K;
  }
  if (NORM == 1 || NORM == 2) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      if (threadIdx.x + i * THREADS < UNITS) {
#pragma unroll
        for (int e = 0; e < E; e++) {
          squares += (row[i][e] - mean) * (row[i][e] - mean);
        }
      }
    }
    inverse = rsqrtf(block_sum(squares) / K + __int_as_float(EPS));
  }
  __shared__ float partial[NORM == 3 ? UNITS : 1], inverses[NORM == 3 ? GROUPS : 1];
  if (NORM == 3) {
    for (int i = 0; i < MINE; i++) {
      const int unit = threadIdx.x + i * THREADS;
      if (unit < UNITS) {
        float squares = 0.0f;
        for (int e = 0; e < E; e++) {
          squares += row[i][e] * row[i][e];
        }
        partial[unit] = squares;
      }
    }
    __syncthreads();
    for (int group = warp; group < GROUPS; group += WARPS) {
      float squares = 0.0f;
      for (int unit = lane; unit < UNITS / GROUPS; unit += 32) {
        squares += partial[group * (UNITS / GROUPS) + unit];
      }
      squares = warp_sum(squares);
      if (lane == 0) {
        inverses[group] = rsqrtf(squares / (K / GROUPS) + __int_as_float(EPS));
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    const int unit = threadIdx.x + i * THREADS;
    if (unit < UNITS) {
      if (NORM == 3) {
        inverse = inverses[unit / (UNITS / GROUPS)];
      }
#pragma unroll
      for (int e = 0; e < E; e++) {
        float value = row[i][e];
        if (NORM) {
          value = (value - mean) * inverse * up(norm_weight[unit * E + e]);
          value += NORM == 2 ? up(norm_bias[unit * E + e]) : 0.0f;
        }
        row[i][e] = SILU ? value / (1.0f + expf(-value)) : value;
      }
      const int rest = unit % (32 * U);  // so that in each step neighbouring lanes read neighbouring 16 bytes
      write(held[q], (unit / (32 * U) * U + rest % U) * 32 + rest / U, row[i]);
    }
  }
}
__syncthreads();

float sums[R][ROWS] = {};
for (int begin = 0; begin < STEPS; begin += DEPTH) {
#pragma unroll
  for (int slot = 0; slot < DEPTH; slot++) {
    const int step = begin + slot;
    if (step < STEPS) {
      if (step * 32 + lane < COLUMNS) {
#pragma unroll
        for (int q = 0; q < R; q++) {
          float total = 0.0f, dots[ROWS] = {};
#pragma unroll
          for (int j = 0; j < U; j++) {
            const uint4 packed = held[q][(step * U + j) * 32 + lane];
            const T* inputs = reinterpret_cast<const T*>(&packed);
#pragma unroll
            for (int e = 0; e < E; e++) {
              const float input = up(inputs[e]);
              const int i = j * E + e;
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
            sums[q][r] += BITS ? scale[slot][r] * dots[r] + offset[slot][r] * total : dots[r];
          }
        }
      }
      load(slot, step + DEPTH);
    }
  }
}

float value = 0.0f, partner = 0.0f;
#pragma unroll
for (int q = 0; q < R; q++) {
#pragma unroll
  for (int r = 0; r < PER; r++) {
    const float total = warp_sum(sums[q][r]);
    const float other = PAIRED ? warp_sum(sums[q][ROWS - PER + r]) : 0.0f;
    if (lane == q * PER + r) {
      value = up(static_cast<T>(total));
      partner = up(static_cast<T>(other));
    }
  }
}
if (writes) {
  if (BIAS) {
    value = up(static_cast<T>(value + up(bias[mine])));
  }
  if (ACT == 1) {
    value = value / (1.0f + expf(-value));
  } else if (ACT == 2) {
    value = value > 0.0f ? value * value : 0.0f;
  } else if (ACT == 3) {
    value = value / (1.0f + expf(-value * (1.5957691216f + 0.0713548163f * value * value))) * partner;
  } else if (ACT == 4) {
    value = value / (1.0f + expf(-partner));
  }
  out[(lane / PER) * OUT + mine] = static_cast<T>(RESIDUAL ? kept + (HALF ? 0.5f : 1.0f) * value : value);
}
