// Greedy transducer decoding of one frame by a single block: up to MOST pieces, ending at the first blank.
// Each round: the joint network's best piece; unless it is blank, the LSTM takes it and its projection is renewed.
constexpr int WARPS = 32, GATES = 4 * P;
__shared__ float hidden[LAYERS][P], cell[LAYERS][P], encoded[J], predicted[J], joined[J], inputs[2 * P], gates[GATES];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
auto dot = [&](const float* row, const float* vector, int length) {
  float sum = 0.0f;
  for (int k = 4 * lane; k < length; k += 128) {
    const float4 four = *reinterpret_cast<const float4*>(row + k);
    sum += four.x * vector[k] + four.y * vector[k + 1] + four.z * vector[k + 2] + four.w * vector[k + 3];
  }
  return warp_sum(sum);
};
for (int i = threadIdx.x; i < LAYERS * P; i += blockDim.x) {
  hidden[i / P][i % P] = hiddens[i];
  cell[i / P][i % P] = cells[i];
}
for (int i = threadIdx.x; i < J; i += blockDim.x) {
  encoded[i] = encoder_term[i];
  predicted[i] = prediction_term[i];
}
__syncthreads();
int found = 0;
for (; found < MOST; found++) {
  for (int i = threadIdx.x; i < J; i += blockDim.x) {
    joined[i] = fmaxf(encoded[i] + predicted[i], 0.0f);
  }
  __syncthreads();
  float score = -ENDLESS;
  int piece = PIECES;
  for (int n = warp; n <= PIECES; n += WARPS) {
    const float logit = dot(joint + static_cast<size_t>(n) * J, joined, J) + joint_bias[n];
    if (logit > score) {
      score = logit;
      piece = n;
    }
  }
  block_best<WARPS>(score, piece);
  if (piece == PIECES) {
    break;
  }
  if (threadIdx.x == 0) {
    pieces[found] = piece;
  }
  for (int i = threadIdx.x; i < P; i += blockDim.x) {
    inputs[i] = embed[static_cast<size_t>(piece) * P + i];
  }
  for (int layer = 0; layer < LAYERS; layer++) {
    for (int i = threadIdx.x; i < P; i += blockDim.x) {
      inputs[P + i] = hidden[layer][i];
    }
    __syncthreads();
    for (int n = warp; n < GATES; n += WARPS) {
      const size_t row = static_cast<size_t>(layer) * GATES + n;
      const float gate = dot(matrices + row * 2 * P, inputs, 2 * P) + biases[row];
      if (lane == 0) {
        gates[n] = gate;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < P; i += blockDim.x) {
      const float in = 1.0f / (1.0f + expf(-gates[i])), forget = 1.0f / (1.0f + expf(-gates[P + i]));
      const float out = 1.0f / (1.0f + expf(-gates[3 * P + i]));
      cell[layer][i] = forget * cell[layer][i] + in * tanhf(gates[2 * P + i]);
      inputs[i] = hidden[layer][i] = out * tanhf(cell[layer][i]);
    }
    __syncthreads();
  }
  for (int n = warp; n < J; n += WARPS) {
    const float term = dot(pred + static_cast<size_t>(n) * P, inputs, P) + pred_bias[n];
    if (lane == 0) {
      predicted[n] = term;
    }
  }
  __syncthreads();
}
for (int i = threadIdx.x; i < MOST; i += blockDim.x) {
  if (i >= found) {
    pieces[i] = PIECES;
  }
}
for (int i = threadIdx.x; i < LAYERS * P; i += blockDim.x) {
  next_hiddens[i] = hidden[i / P][i % P];
  next_cells[i] = cell[i / P][i % P];
}
for (int i = threadIdx.x; i < J; i += blockDim.x) {
  next_term[i] = predicted[i];
}
