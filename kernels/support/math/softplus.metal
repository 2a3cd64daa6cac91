// ln(1 + exp(x)), also if exp(x) overflows.
inline float softplus(float x) {
    return max(x, 0.0f) + log(1.0f + exp(-fabs(x)));
}
