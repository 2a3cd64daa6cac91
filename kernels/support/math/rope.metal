// Rotates two channels by an angle. Angles grow with positions, beyond the range of the fast sine and cosine.
inline float2 rope(float2 pair, float angle, float magnitude) {
    const float cosine = precise::cos(angle) * magnitude;
    const float sine = precise::sin(angle) * magnitude;
    return float2(pair.x * cosine - pair.y * sine, pair.y * cosine + pair.x * sine);
}
