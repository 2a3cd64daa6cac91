// A packet of f16 weights: 16 bytes, 8 columns.
inline void f16_decode(uint4 packet, thread float4* weights) {
    weights[0] = float4(as_type<half4>(packet.xy));
    weights[1] = float4(as_type<half4>(packet.zw));
}
