// Quantizes a block of 32 values of a row, one in each lane, and stores it as `quantize` does. Rows of the
// result have `stretches` times 128 columns.
inline void store_quantized(device uint* quantized, uint stretches, uint row, uint block, uint lane, float value) {
    const uint largest = simd_max(as_type<uint>(value) & 0x7fffffffu);
    const uint exponent = max((largest + 0x10200u) >> 23u, 32u) - 14u;
    const float inverse = as_type<float>((254u - exponent) << 23u);
    const uint bits = as_type<uint>(value * inverse + 12583040.0f);
    const int sum = simd_sum(int(bits - 0x4b400080u));
    // Four lanes share a word of upper bytes and a word of lower bytes.
    const uint shift = lane % 4u * 8u;
    uint upper = (bits >> 8u & 255u) << shift;
    uint lower = (bits & 255u ^ 128u) << shift;
    upper |= simd_shuffle_xor(upper, ushort(1));
    lower |= simd_shuffle_xor(lower, ushort(1));
    upper |= simd_shuffle_xor(upper, ushort(2));
    lower |= simd_shuffle_xor(lower, ushort(2));
    device uint* four = quantized + (row / 4u * stretches + block / 4u) * 288u;
    const uint b = block % 4u;
    const uint word = lane / 4u;
    if (lane % 4u == 0u) {
        const uint place = b / 2u * 128u + row % 4u * 32u + word % 4u * 4u + b % 2u * 2u + word / 4u;
        four[place] = upper;
        four[place + 16u] = lower;
    }
    if (lane == 0u) {
        four[256u + row % 4u * 4u + b] = largest < 0x7f800000u ? exponent << 23u : 0x7fc00000u;
        four[272u + row % 4u * 4u + b] = as_type<uint>(sum);
    }
}
