// COUNT levels of residual quantisation, from level START on, in one launch: the blocks share a level's rows and meet before
// its nearest is known. score = e · residual - ½‖e‖²; equal scores go to the lower code. `scores` and `codes` hold each block's
// best, for even and for odd levels. A warp's first row of the next level is on its way while the blocks meet.
constexpr int WARPS = 8, THREADS = 32 * WARPS, E = 16 / static_cast<int>(sizeof(B)), UNITS = LATENT / E;
constexpr int MINE = (UNITS + 31) / 32, SHARE = (LATENT + THREADS - 1) / THREADS;
static_assert(LATENT % E == 0, "a row is whole reads");
__shared__ float left[LATENT];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
const int first = blockIdx.x * WARPS + warp;
Meeting meet{const_cast<unsigned*>(words)};
clear(next_words);
uint4 packed[MINE];
float norm = 0.0f;
auto load = [&](int level, int row) {
  if (row < CODES) {
    const size_t place = static_cast<size_t>(START + level) * CODES + row;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      packed[i] = __ldg(reinterpret_cast<const uint4*>(books + place * LATENT) + min(lane + 32 * i, UNITS - 1));
    }
    norm = up(half_norms[place]);
  }
};
load(0, first);
for (int d = threadIdx.x; d < LATENT; d += THREADS) {
  left[d] = residual[d];
}
if (blockIdx.x == 0) {
  for (int i = threadIdx.x; i < LEVELS; i += THREADS) {
    next_found[i] = found[i];
  }
}
__syncthreads();
for (int level = 0; level < COUNT; level++) {
  float score = -ENDLESS;
  int code = CODES;
  for (int row = first; row < CODES; row += blocks * WARPS) {
    if (row > first) {
      load(level, row);
    }
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int unit = lane + 32 * i;
#pragma unroll
      for (int e = 0; e < E; e++) {
        dot += unit < UNITS ? up(reinterpret_cast<const B*>(&packed[i])[e]) * left[unit * E + e] : 0.0f;
      }
    }
    dot = warp_sum(dot) - norm;
    if (dot > score) {
      score = dot;
      code = row;
    }
  }
  block_best<WARPS>(score, code);
  const int here = level % 2 * blocks;
  if (threadIdx.x == 0) {
    scores[here + blockIdx.x] = score;
    codes[here + blockIdx.x] = code;
  }
  meet.arrive();
  if (level + 1 < COUNT) {
    load(level + 1, first);
  }
  meet.wait();
  score = -ENDLESS;
  code = CODES;
  for (int i = lane; i < blocks; i += 32) {
    const float other = fresh(scores + here + i);
    const int other_code = fresh(codes + here + i);
    if (other > score || (other == score && other_code < code)) {
      score = other;
      code = other_code;
    }
  }
  warp_best(score, code);
  code = min(code, CODES - 1);  // where no score is a number
  const B* chosen = books + (static_cast<size_t>(START + level) * CODES + code) * LATENT;
  float part[SHARE];
#pragma unroll
  for (int i = 0; i < SHARE; i++) {
    part[i] = up(chosen[min(static_cast<int>(threadIdx.x) + i * THREADS, LATENT - 1)]);
  }
#pragma unroll
  for (int i = 0; i < SHARE; i++) {
    const int d = threadIdx.x + i * THREADS;
    if (d < LATENT) {
      left[d] -= part[i];
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    next_found[START + level] = code;
  }
  __syncthreads();
}
if (blockIdx.x == 0) {
  for (int d = threadIdx.x; d < LATENT; d += THREADS) {
    rest[d] = left[d];
  }
}
