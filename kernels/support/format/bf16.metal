// A packet of bf16 weights: 16 bytes, 8 columns. A bf16 is the upper half of an f32, so widening is a shift.
inline void bf16_decode(uint4 packet, thread float4* weights) {
    const uint4 even = packet << 16u;
    const uint4 odd = packet & 0xffff0000u;
    weights[0] = as_type<float4>(uint4(even.x, odd.x, even.y, odd.y));
    weights[1] = as_type<float4>(uint4(even.z, odd.z, even.w, odd.w));
}
