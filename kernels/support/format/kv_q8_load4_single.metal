// Loads four values of a q8_0 KV record whose width is not a multiple of 64, so that its values are
// unaligned. See `record4_whole`.
inline float4 record4_single(device const uchar* record, uint channel, uint width) {
    if (channel >= width) {
        return float4(0.0f);
    }
    device const char* codes = (device const char*)record + channel;
    const float scale = float(*(device const half*)(record + width + channel / 32u * 2u));
    return scale * float4(float(codes[0]), float(codes[1]), float(codes[2]), float(codes[3]));
}
