// One level of residual quantisation. Every block first finds the previous level's nearest row from the partial minima
// of all blocks (or, with FIRST, takes the residual as it is), subtracts it, and then scores eight rows of this book.
// score = ½‖e‖² - e · residual; equal scores go to the lower code. With LAST there is no book to score.
constexpr int WARPS = 8;
__shared__ float left[LATENT];
__shared__ float best_score[256];
__shared__ int best_code[256];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
int chosen = 0;
if (!FIRST) {
  float score = ENDLESS;
  int code = 0x7fffffff;
  for (int i = threadIdx.x; i < scores_shape[0]; i += blockDim.x) {
    if (scores[i] < score || (scores[i] == score && codes[i] < code)) {
      score = scores[i];
      code = codes[i];
    }
  }
  best_score[threadIdx.x] = score;
  best_code[threadIdx.x] = code;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float other = best_score[threadIdx.x + step];
      const int other_code = best_code[threadIdx.x + step];
      if (other < best_score[threadIdx.x] || (other == best_score[threadIdx.x] && other_code < best_code[threadIdx.x])) {
        best_score[threadIdx.x] = other;
        best_code[threadIdx.x] = other_code;
      }
    }
    __syncthreads();
  }
  chosen = best_code[0];
}
for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
  left[d] = residual[d] - (FIRST ? 0.0f : up(previous[static_cast<size_t>(chosen) * LATENT + d]));
  if (blockIdx.x == 0) {
    next_residual[d] = left[d];
  }
}
if (blockIdx.x == 0) {
  for (int i = threadIdx.x; i < found_shape[0]; i += blockDim.x) {
    next_found[i] = !FIRST && i == place[0] ? chosen : found[i];
  }
}
if (LAST) {
  return;
}
__syncthreads();
const int code = blockIdx.x * WARPS + warp;
float dot = 0.0f;
if (code < book_shape[0]) {
  for (int d = lane; d < LATENT; d += 32) {
    dot += up(book[static_cast<size_t>(code) * LATENT + d]) * left[d];
  }
}
dot = warp_sum(dot);
if (lane == 0) {
  best_score[warp] = code < book_shape[0] ? up(half_norms[code]) - dot : ENDLESS;
}
__syncthreads();
if (threadIdx.x == 0) {
  int winner = 0;
  for (int w = 1; w < WARPS; w++) {
    if (best_score[w] < best_score[winner]) {
      winner = w;
    }
  }
  next_scores[blockIdx.x] = best_score[winner];
  next_codes[blockIdx.x] = blockIdx.x * WARPS + winner;
}
