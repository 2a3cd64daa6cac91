// With programmatic dependent launch, waits for the preceding kernels, before their results are read or overwritten.
// Metal does not start kernels early.
#ifndef OWN_WAIT
inline void wait_for_others() {}
inline void wait_for_others_if(bool) {}
#endif
