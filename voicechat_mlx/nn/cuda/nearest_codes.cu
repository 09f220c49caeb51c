// COUNT levels of residual quantisation, from level START on, in one launch: the blocks share a level's rows and meet before
// its nearest is known. score = e · residual - ½‖e‖²; equal scores go to the lower code. `scores` and `codes` hold each block's
// best, for even and for odd levels.
constexpr int WARPS = 8;
__shared__ float left[LATENT];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
const GridWait meet{const_cast<unsigned*>(barrier)};
for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
  left[d] = residual[d];
}
if (blockIdx.x == 0) {
  for (int i = threadIdx.x; i < LEVELS; i += blockDim.x) {
    next_found[i] = found[i];
  }
}
__syncthreads();
for (int level = 0; level < COUNT; level++) {
  const B* book = books + static_cast<size_t>(START + level) * CODES * LATENT;
  float score = -ENDLESS;
  int code = CODES;
  for (int row = blockIdx.x * WARPS + warp; row < CODES; row += blocks * WARPS) {
    float dot = 0.0f;
    for (int d = lane; d < LATENT; d += 32) {
      dot += up(book[static_cast<size_t>(row) * LATENT + d]) * left[d];
    }
    dot = warp_sum(dot) - up(half_norms[(START + level) * CODES + row]);
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
  meet();
  score = -ENDLESS;
  code = CODES;
  for (int i = lane; i < blocks; i += 32) {
    const float other = __ldcg(scores + here + i);
    const int other_code = __ldcg(codes + here + i);
    if (other > score || (other == score && other_code < code)) {
      score = other;
      code = other_code;
    }
  }
  warp_best(score, code);
  for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
    left[d] -= up(book[static_cast<size_t>(code) * LATENT + d]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    next_found[START + level] = code;
  }
  __syncthreads();
}
if (blockIdx.x == 0) {
  for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
    rest[d] = left[d];
  }
}
