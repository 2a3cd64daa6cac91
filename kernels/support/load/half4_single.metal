// Four halves of a row of any width, so of any alignment, from `channel`; zeros past it.
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
