// Where a device begins a kernel before those have ended whose results it reads, it waits for them here, once, before it reads or
// writes anything of theirs. Metal begins none early.
#ifndef OWN_WAIT
inline void wait_for_others() {}
#endif
