// Loads eight floats of a row of any width and alignment, from `channel` on; zeros past the width.
inline void float8_single(device const float* row, uint channel, uint width, thread float4* to) {
    #pragma unroll
    for (uint c = 0u; c < 8u; c++) {
        to[c / 4u][c % 4u] = channel + c < width ? row[channel + c] : 0.0f;
    }
}
