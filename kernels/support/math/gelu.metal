// GELU: x times the normal distribution function. Computed as max(x, 0) - |x| q, where q is the upper tail
// probability at
// |x|: a polynomial times exp(-x^2 / 2), accurate to 2 units in the seventh digit. Beyond 12 it is negligible in f32, and
// exp stays finite.
inline float gelu(float x) {
    const float far = min(fabs(x), 12.0f);
    const float t = 1.0f / (1.0f + 0.23164189f * far);
    float poly = 0.5307027f;
    poly = poly * t - 0.726576f;
    poly = poly * t + 0.7107069f;
    poly = poly * t - 0.14224836f;
    poly = poly * t + 0.1274148f;
    return max(x, 0.0f) - fabs(x) * (poly * t * exp(-0.5f * far * far));
}
