// Quantizes a block of 32 values, four in each of eight lanes, to 16 bits, and returns the block's scale: a
// power of two such that the largest value is at most 32,639. The nearest integer n is split into bytes as
// 256 u + l: byte 1 of n + 128 is u, and byte 0 with its highest bit flipped is l. `sum` is the sum of the
// lane's four integers.
//
// Values are compared by their bits, so NaN is the largest, and makes the whole block NaN. A block below
// 2^-95 is zero.
inline float codes_of_block(float4 numbers, thread uint& upper, thread uint& lower, thread int& sum) {
    const uint4 sizes = as_type<uint4>(numbers) & uint4(0x7fffffffu);
    uint largest = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    largest = max(largest, simd_shuffle_xor(largest, ushort(1)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(2)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(4)));
    // From 32,639 on the next power of two.
    const uint exponent = max((largest + 0x10200u) >> 23u, 32u) - 14u;
    const float inverse = as_type<float>((254u - exponent) << 23u);
    // Adding 3 · 2^22 + 128 makes the last bit worth 1, so the low bits are those of n + 128.
    const float4 rounded = numbers * float4(inverse) + float4(12583040.0f);
    const uint4 bits = as_type<uint4>(rounded);
    sum = int(bits.x + bits.y + bits.z + bits.w - 4u * 0x4b400080u);
    const uchar4 a = as_type<uchar4>(rounded.x);
    const uchar4 b = as_type<uchar4>(rounded.y);
    const uchar4 c = as_type<uchar4>(rounded.z);
    const uchar4 d = as_type<uchar4>(rounded.w);
    upper = as_type<uint>(uchar4(a.y, b.y, c.y, d.y));
    lower = as_type<uint>(uchar4(a.x, b.x, c.x, d.x)) ^ 0x80808080u;
    return as_type<float>(largest < 0x7f800000u ? exponent << 23u : 0x7fc00000u);
}
