// A packet of f32 weights: 16 bytes, 4 columns.
inline void f32_decode(uint4 packet, thread float4* weights) {
    weights[0] = as_type<float4>(packet);
}
