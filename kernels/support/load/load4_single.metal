// Loads four columns of a row of any width and alignment; zeros past the width.
inline float4 load4_single(device const float* row, uint column, uint width) {
    float4 values = float4(0.0f);
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        if (column + i < width) {
            values[i] = row[column + i];
        }
    }
    return values;
}
