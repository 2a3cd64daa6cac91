// Quantization to 16 bits in blocks of 32 values. A block's scale is a power of two such that its largest value
// is at most 32,639. The nearest integer n is split into bytes as 256 u + l: byte 1 of n + 128 is u, and byte 0
// with its highest bit flipped is l.
//
// Values are compared by their bits, so NaN is the largest, and makes the whole block NaN. A block below
// 2^-95 is zero.

// Exponent of the scale of a block whose largest value has these bits without the sign.
inline uint scale_exponent(uint largest) {
    // From 32,639 on the next power of two.
    return max((largest + 0x10200u) >> 23u, 32u) - 14u;
}

// The scale of that block.
inline float scale_of_block(uint largest) {
    return as_type<float>(largest < 0x7f800000u ? scale_exponent(largest) << 23u : 0x7fc00000u);
}

// The bits of n + 128 in the low bits: adding 3 · 2^22 + 128 makes the last bit worth 1. Those of 0 are 0x4b400080.
inline uint quantized_bits(float value, uint largest) {
    const float inverse = as_type<float>((254u - scale_exponent(largest)) << 23u);
    return as_type<uint>(value * inverse + 12583040.0f);
}

// Quantizes a block, four values in each of eight lanes, and returns its scale. `sum` is the sum of the lane's
// four integers.
inline float codes_of_block(float4 numbers, thread uint& upper, thread uint& lower, thread int& sum) {
    const uint4 sizes = as_type<uint4>(numbers) & uint4(0x7fffffffu);
    uint largest = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    largest = max(largest, simd_shuffle_xor(largest, ushort(1)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(2)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(4)));
    uint4 bits;
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        bits[i] = quantized_bits(numbers[i], largest);
    }
    sum = int(bits.x + bits.y + bits.z + bits.w - 4u * 0x4b400080u);
    const uchar4 a = as_type<uchar4>(bits.x);
    const uchar4 b = as_type<uchar4>(bits.y);
    const uchar4 c = as_type<uchar4>(bits.z);
    const uchar4 d = as_type<uchar4>(bits.w);
    upper = as_type<uint>(uchar4(a.y, b.y, c.y, d.y));
    lower = as_type<uint>(uchar4(a.x, b.x, c.x, d.x)) ^ 0x80808080u;
    return scale_of_block(largest);
}
