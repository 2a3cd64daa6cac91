// Loads four halves of a row whose width is a multiple of 4, from `channel` on; zeros past the width.
inline half4 half4_guarded(device const half* row, uint channel, uint width) {
    return channel < width ? *(device const half4*)(row + channel) : half4(float4(0.0f));
}
