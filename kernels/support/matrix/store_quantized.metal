// Quantizes a block of 32 values of a row, one in each lane, and stores it among quantized rows.
inline void store_quantized(device uint* quantized, uint stretches, uint row, uint block, uint lane, float value) {
    const uint largest = simd_max(as_type<uint>(value) & 0x7fffffffu);
    const uint bits = quantized_bits(value, largest);
    const int sum = simd_sum(int(bits - 0x4b400080u));
    // Four lanes share a word of upper bytes and a word of lower bytes.
    const uint shift = lane % 4u * 8u;
    uint upper = (bits >> 8u & 255u) << shift;
    uint lower = ((bits & 255u) ^ 128u) << shift;
    upper |= simd_shuffle_xor(upper, ushort(1));
    lower |= simd_shuffle_xor(lower, ushort(1));
    upper |= simd_shuffle_xor(upper, ushort(2));
    lower |= simd_shuffle_xor(lower, ushort(2));
    device uint* four = four_blocks(quantized, stretches, row, block);
    if (lane % 4u == 0u) {
        store_codes(four, row, block, lane / 4u, upper, lower);
    }
    if (lane == 0u) {
        store_scale(four, row, block, scale_of_block(largest), sum);
    }
}
