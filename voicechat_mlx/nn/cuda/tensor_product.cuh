// The same step as `product` for one row of bfloat16 and weights of 4 bits in groups of 64, by tensor cores: unpacking by
// arithmetic would cost more than reading.
//
// A tile is 16 outputs. Its 8 warps take pieces of 128 inputs in turn: a lane reads 16 bytes, 32 weights, of each of two rows.
// Weights p and p + 4 of eight become two bfloat16 1 + w / 16 by a shift and a mask; `prepare` puts inputs p and p + 4 side by
// side as well. A tensor core multiplies by eight columns, two for each of four pieces: inputs of a piece's first group of 64
// in one, those of its second in the other, else zeros. So after four pieces the sums of piece i are with the lanes of
// quarter i, which scale them. A tile's scales and offsets lie behind each other in memory: the block copies them into
// shared memory while it works on the tile before.
template <typename P>
struct Pieces {
  static constexpr int OUTPUTS = 16, WARPS = 8, INPUTS = 128, GROUP = 64;
  static constexpr int TILES = (P::N + OUTPUTS - 1) / OUTPUTS, ALL = (P::K + INPUTS - 1) / INPUTS;
  static constexpr int TURNS = (ALL + WARPS - 1) / WARPS;  // of a warp, in a tile
  __device__ static constexpr int depth() {  // pieces on the way; the last turns may be idle, as few as possible
    int best = TURNS < 8 ? TURNS : 8;
    for (int d = best - 1; d > 4; d--) {
      if ((TURNS + d - 1) / d * d < (TURNS + best - 1) / best * best) {
        best = d;
      }
    }
    return best;
  }
  static constexpr int DEPTH = depth(), STEPS = (TURNS + DEPTH - 1) / DEPTH * DEPTH;
  static constexpr int GROUPS = P::K / GROUP, FACTORS = OUTPUTS * GROUPS * 2 / 16;  // of a row; uint4s of a tile's scales
};

// Weights p and p + 4 of a word's eight, as 1 + w / 16.
__device__ inline unsigned weights_of(unsigned word, int p) {
  return masked(p ? word >> (4 * p - 3) : word << 3, 0x00780078u, 0x3f803f80u);
}

template <typename P, typename Meet, typename SC, typename NW, typename NB, typename PW, typename PB, typename B>
__device__ void tensor_product(
    uint4* held, Meet& meet, const typename P::T* x, const typename P::T* y, const typename P::T* residual,
    const unsigned* w, const SC* scales, const SC* offsets, const NW* norm_weight, const NB* norm_bias, const PW* post,
    const PB* pre_bias, const B* bias, typename P::T* out, typename P::T* sum) {
  using S = Pieces<P>;
  constexpr int DEPTH = S::DEPTH, ROW = P::K / 32, GROUPS = S::GROUPS;  // 16 bytes, and groups, of a row of weights
  __shared__ float parts[2][S::WARPS][S::OUTPUTS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quarter = lane % 4;
  uint4 weights[DEPTH][2];
  int loading;
  const uint4* rows[2];
  auto turn_to = [&](int tile) {
    loading = tile;
    const size_t first = min(tile * S::OUTPUTS + row, P::N - 1), second = min(tile * S::OUTPUTS + row + 8, P::N - 1);
    rows[0] = reinterpret_cast<const uint4*>(w) + first * ROW + warp * 4 + quarter;
    rows[1] = reinterpret_cast<const uint4*>(w) + second * ROW + warp * 4 + quarter;
  };
  auto load = [&](int slot, int turn) {
    const int piece = turn * S::WARPS + warp;
    if (loading < S::TILES && piece < S::ALL) {
      if (P::K % S::INPUTS == 0 || piece * 2 + 1 < GROUPS || quarter < 2) {
        weights[slot][0] = __ldcs(rows[0] + turn * S::WARPS * 4);
        weights[slot][1] = __ldcs(rows[1] + turn * S::WARPS * 4);
      }
    }
  };
  // Behind the inputs and eight zeros: the sums of their groups, and twice a tile's scales and offsets.
  const uint4* const zeros = held + Sizes<P>::UNITS;
  const float* const sums = reinterpret_cast<const float*>(zeros + 8);
  uint4* const staged = held + Sizes<P>::UNITS + 8 + (GROUPS + 1 + 3) / 4;
  auto stage = [&](int tile, int turned) {
    for (int i = threadIdx.x; i < S::FACTORS; i += 32 * S::WARPS) {
      const size_t place = static_cast<size_t>(tile) * S::FACTORS + i;
      if (place < static_cast<size_t>(P::N) * GROUPS / 8) {
        copy_behind(staged + 2 * turned * S::FACTORS + i, reinterpret_cast<const uint4*>(scales) + place);
        copy_behind(staged + (2 * turned + 1) * S::FACTORS + i, reinterpret_cast<const uint4*>(offsets) + place);
      }
    }
  };
  meet.arrive();
  turn_to(blockIdx.x);
  stage(blockIdx.x, 0);
#pragma unroll
  for (int slot = 0; slot < DEPTH; slot++) {
    load(slot, slot);
  }
  NormParameters<P, NW, NB, PW, PB> parameters;
  parameters.read(norm_weight, norm_bias, post, pre_bias);
  meet.wait();
  wait_for_copies();
  prepare(held, x, y, parameters, sum);

  int turned = 0;
  for (int tile = blockIdx.x; tile < S::TILES; tile += gridDim.x, turned ^= 1) {
    const int mine = tile * S::OUTPUTS + static_cast<int>(threadIdx.x);  // the output that this thread will write
    const bool writes = threadIdx.x < S::OUTPUTS && mine < P::N;
    const float kept = P::RESIDUAL && writes ? up(fresh(residual + mine)) : 0.0f;
    float totals[2] = {};
    float found[2][4] = {};
    const unsigned short* const tile_scales = reinterpret_cast<const unsigned short*>(staged + 2 * turned * S::FACTORS);
    const unsigned short* const tile_offsets = tile_scales + S::FACTORS * 8;
    stage(tile + gridDim.x, turned ^ 1);
    for (int begin = 0; begin < S::STEPS; begin += DEPTH) {
      const bool last = begin + DEPTH == S::STEPS;
      if (last) {
        turn_to(tile + gridDim.x);
      }
#pragma unroll
      for (int slot = 0; slot < DEPTH; slot++) {
        const int turn = begin + slot, piece = turn * S::WARPS + warp;
        if (piece < S::ALL) {
          const uint4* const inputs = row == turn % 4 * 2 + quarter / 2 ? held + (piece * 4 + quarter) * 4 : zeros;
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const uint4 pairs = inputs[j];
            const unsigned words[2] = {(&weights[slot][0].x)[j], (&weights[slot][1].x)[j]};
#pragma unroll
            for (int p = 0; p < 4; p += 2) {
              const unsigned a[4] = {
                  weights_of(words[0], p), weights_of(words[1], p), weights_of(words[0], p + 1), weights_of(words[1], p + 1)};
              const unsigned b[2] = {(&pairs.x)[p], (&pairs.x)[p + 1]};
              multiply(found[p / 2], a, b);
            }
          }
        }
        if (turn % 4 == 3 || turn == S::STEPS - 1) {
          const int scaled = (turn / 4 * 4 + quarter) * S::WARPS + warp;  // the piece that this lane scales
          if (scaled < S::ALL) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
              for (int group = 0; group < 2; group++) {
                if (P::K % S::INPUTS == 0 || scaled * 2 + group < GROUPS) {
                  const int place = (row + 8 * r) * GROUPS + scaled * 2 + group;
                  const float by = __uint_as_float(static_cast<unsigned>(tile_scales[place]) << 16);
                  const float more = __uint_as_float(static_cast<unsigned>(tile_offsets[place]) << 16);
                  const float all = sums[scaled * 2 + group];
                  totals[r] += by * (16.0f * (found[0][2 * r + group] + found[1][2 * r + group] - all)) + more * all;
                }
              }
            }
          }
#pragma unroll
          for (int i = 0; i < 4; i++) {
            found[0][i] = found[1][i] = 0.0f;
          }
        }
        load(slot, last ? slot : begin + slot + DEPTH);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      totals[r] += __shfl_xor_sync(0xffffffffu, totals[r], 1);
      totals[r] += __shfl_xor_sync(0xffffffffu, totals[r], 2);
    }
    if (quarter == 0) {
      parts[turned][warp][row] = totals[0];
      parts[turned][warp][row + 8] = totals[1];
    }
    wait_for_copies();
    __syncthreads();
    if (writes) {
      float value = 0.0f;
#pragma unroll
      for (int i = 0; i < S::WARPS; i++) {
        value += parts[turned][i][threadIdx.x];
      }
      out[mine] = finished<P>(up(static_cast<typename P::T>(value)), 0.0f, kept, bias, mine);
    }
  }
}
