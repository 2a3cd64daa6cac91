//! Slots, their cached prefixes, and the choice of a slot for a new sequence.
//!
//! A slot keeps its tokens after its sequence has ended. A sequence with the same prefix continues from
//! there. In a chat each request repeats the whole conversation, so most of a prompt is usually cached.

/// A slot, with its running sequence if there is one.
pub(crate) struct Slot<W> {
    /// The tokens in the slot.
    pub(crate) tokens: Vec<u32>,
    /// The running sequence.
    pub(crate) request: Option<W>,
    /// When a sequence last started or ended here, as a counter.
    pub(crate) last_used: u64,
}

impl<W> Slot<W> {
    pub(crate) fn new() -> Slot<W> {
        Slot { tokens: Vec::new(), request: None, last_used: 0 }
    }

    /// Length of the common prefix with `prompt`, without its last token: that is always processed, because
    /// its output is needed.
    pub(crate) fn common_prefix(&self, prompt: &[u32]) -> usize {
        common(&self.tokens, prompt)
    }
}

fn common(known: &[u32], prompt: &[u32]) -> usize {
    let same = known.iter().zip(prompt).take_while(|(own, other)| own == other).count();
    same.min(prompt.len().saturating_sub(1))
}

/// The slot for a new sequence: the idle slot that can keep the longest prefix of the prompt, if that is at
/// least half of it; else the least recently used idle slot, so that a short common prefix does not evict a
/// long conversation. `kept`: how much of a prefix a slot can keep.
pub(crate) fn choose_slot<W>(
    slots: &[Slot<W>],
    prompt: &[u32],
    kept: impl Fn(usize, usize) -> usize,
) -> Option<usize> {
    let idle = || slots.iter().enumerate().filter(|(_, slot)| slot.request.is_none());
    let kept = |(index, slot): (usize, &Slot<W>)| (kept(index, slot.common_prefix(prompt)), index);
    let (most, best) = idle().rev().map(kept).max_by_key(|(kept, _)| *kept)?;
    if 2 * most >= prompt.len() {
        return Some(best);
    }
    idle().min_by_key(|(_, slot)| slot.last_used).map(|(index, _)| index)
}

/// The longest cached prefix of `prompt` in any slot, idle or not, and that slot.
pub(crate) fn longest_prefix<W>(
    slots: &[Slot<W>],
    prompt: &[u32],
    kept: impl Fn(usize, usize) -> usize,
) -> (usize, usize) {
    let known = |(index, slot): (usize, &Slot<W>)| (kept(index, slot.common_prefix(prompt)), index);
    slots.iter().enumerate().map(known).max().unwrap_or((0, 0))
}

/// Length of the prefix of `prompt` that a slot will have cached, which has processed `read` tokens of the
/// prompt `own`; 0 if it is cached already. Slots with recurrent states can be copied only from their
/// snapshot, before the last token of their prompt.
pub(crate) fn pending_prefix(own: &[u32], read: usize, prompt: &[u32], has_recurrent_state: bool) -> usize {
    let pending = match common(own, prompt) {
        common if !has_recurrent_state => common,
        common if common + 1 >= own.len() => own.len() - 1,
        _ => 0,
    };
    if read < pending { pending } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_gets_the_longest_prefix_or_the_least_recently_used_slot() {
        let slot = |ids: &[u32], last_used, busy: bool| Slot {
            tokens: ids.to_vec(),
            request: busy.then_some(()),
            last_used,
        };
        type Case<'a> = (&'a [Slot<()>], &'a [u32], Option<usize>);
        let cases: [Case<'_>; 6] = [
            (&[slot(&[], 0, false), slot(&[], 0, false)], &[1, 2], Some(0)),
            (&[slot(&[1, 2, 3], 5, false), slot(&[1, 2, 3, 4, 9], 7, false)], &[1, 2, 3, 4, 5], Some(1)),
            // Busy slots are not available.
            (&[slot(&[1, 2, 3], 5, false), slot(&[1, 2, 3, 4, 9], 7, true)], &[1, 2, 3, 4, 5], Some(0)),
            (&[slot(&[], 0, true)], &[1], None),
            // A short common prefix does not evict a long conversation.
            (&[slot(&[1, 5, 6, 7], 9, false), slot(&[], 0, false)], &[1, 2, 3, 4, 5, 6], Some(1)),
            (&[slot(&[1, 5], 9, false), slot(&[8], 3, false), slot(&[9], 4, false)], &[1, 2, 3, 4], Some(1)),
        ];
        for (slots, prompt, chosen) in cases {
            assert_eq!(choose_slot(slots, prompt, |_, length| length), chosen, "{prompt:?}");
        }
        // A prefix that cannot be kept does not count: the other slot keeps half.
        let slots = [slot(&[1, 2, 3, 4, 5, 6], 5, false), slot(&[1, 2, 3], 7, false)];
        let kept = |index, length| if index == 0 { 0 } else { length };
        assert_eq!(choose_slot(&slots, &[1, 2, 3, 9, 9], kept), Some(1));
    }

    #[test]
    fn prefixes_are_found_in_busy_slots_too() {
        let slot = |ids: &[u32], busy: bool| Slot {
            tokens: ids.to_vec(),
            request: busy.then_some(()),
            last_used: 0,
        };
        let slots = [slot(&[1, 2], false), slot(&[1, 2, 3, 9], true), slot(&[4], false)];
        for (prompt, known) in
            [(&[1, 2, 3, 4][..], (3, 1)), (&[4, 5], (1, 2)), (&[7, 8], (0, 2)), (&[4], (0, 2))]
        {
            assert_eq!(longest_prefix(&slots, prompt, |_, length| length), known, "{prompt:?}");
        }
        // A prefix that cannot be copied does not count.
        let kept = |index, length| if index == 1 { 0 } else { length };
        assert_eq!(longest_prefix(&slots, &[1, 2, 3, 4], kept), (2, 0));
    }

    #[test]
    fn prefixes_in_progress_are_known() {
        let own = [1, 2, 3, 4];
        for (read, prompt, promises, has_recurrent_state) in [
            (0, &[1, 2, 3, 4][..], 3, 3),
            (2, &[1, 2, 3, 4], 3, 3),
            // Cached already.
            (3, &[1, 2, 3, 4], 0, 0),
            // A continuation, a divergence, a prefix, and another prompt.
            (0, &[1, 2, 3, 4, 5, 6], 4, 3),
            (3, &[1, 2, 3, 4, 5, 6], 4, 0),
            (0, &[1, 2, 9, 9], 2, 0),
            (0, &[1, 2], 1, 0),
            (0, &[9], 0, 0),
        ] {
            assert_eq!(pending_prefix(&own, read, prompt, false), promises, "{read} {prompt:?}");
            assert_eq!(
                pending_prefix(&own, read, prompt, true),
                has_recurrent_state,
                "{read} {prompt:?} with recurrent state"
            );
        }
    }

    #[test]
    fn the_last_prompt_token_is_processed_again() {
        let slot: Slot<()> = Slot { tokens: vec![1, 2, 3], request: None, last_used: 0 };
        for (prompt, common) in [(&[1, 2, 3][..], 2), (&[1, 2, 3, 4], 3), (&[1, 9], 1), (&[4], 0), (&[1], 0)]
        {
            assert_eq!(slot.common_prefix(prompt), common);
        }
    }
}
