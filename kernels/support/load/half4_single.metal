// Loads four halves of a row of any width and alignment, from `channel` on; zeros past the width.
inline half4 half4_single(device const half* row, uint channel, uint width) {
    half4 values = half4(float4(0.0f));
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        if (channel + i < width) {
            values[i] = row[channel + i];
        }
    }
    return values;
}
