// Codes of 16 bits for a block of 32 numbers, of which each of eight lanes has four, and what one is worth: a power of two of
// which the largest of the block is at most 32,639. Then the nearest whole number n is 256 u + l, both within a byte: byte 1 of
// n + 128 is u, and byte 0 of it with its highest bit turned is l. `sum` becomes that of the lane's four.
//
// A number is compared by its bits, so that what is no number is the largest of all; and then nothing of the block is a number. A block
// of less than 2^-95 is zero.
inline float codes_of_block(float4 numbers, thread uint& upper, thread uint& lower, thread int& sum) {
    const uint4 sizes = as_type<uint4>(numbers) & uint4(0x7fffffffu);
    uint largest = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    largest = max(largest, simd_shuffle_xor(largest, ushort(1)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(2)));
    largest = max(largest, simd_shuffle_xor(largest, ushort(4)));
    // From 32,639 on the next power of two.
    const uint exponent = max((largest + 0x10200u) >> 23u, 32u) - 14u;
    const float inverse = as_type<float>((254u - exponent) << 23u);
    // 3 · 2^22 and the 128: then the last bit is worth 1, and bits are those of 3 · 2^22 and the 128, and n more.
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
