// Loads eight floats of a row whose width is a multiple of 8, from `channel` on; zeros past the width.
inline void float8_guarded(device const float* row, uint channel, uint width, thread float4* to) {
    to[0] = channel < width ? *(device const float4*)(row + channel) : float4(0.0f);
    to[1] = channel < width ? *(device const float4*)(row + channel + 4u) : float4(0.0f);
}
