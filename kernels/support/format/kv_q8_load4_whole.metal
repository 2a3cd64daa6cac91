// Loads four values of a q8_0 KV record from `channel` on: quantized values times the scale of their 32,
// which follows all values. Past the width, a multiple of 64, they are zeros.
inline float4 record4_whole(device const uchar* record, uint channel, uint width) {
    if (channel >= width) {
        return float4(0.0f);
    }
    const float scale = float(*(device const half*)(record + width + channel / 32u * 2u));
    const char4 codes = *(device const char4*)(record + channel);
    return scale * float4(float(codes.x), float(codes.y), float(codes.z), float(codes.w));
}
