//! Slots: what each remembers, and which of them a new text gets.
//!
//! A slot keeps the ids that the model has read in it, also when its text has ended: a text that begins with the same
//! ids takes up from there. The text of a whole conversation comes back with every turn, so most of a prompt has usually
//! been read before.

/// A slot, with the text that is being written in it, if there is one.
pub(crate) struct Slot<W> {
    /// What the model has read here.
    pub(crate) ids: Vec<u32>,
    /// Who works here.
    pub(crate) work: Option<W>,
    /// When a text last began or ended here: larger is later.
    pub(crate) touched: u64,
}

impl<W> Slot<W> {
    pub(crate) fn new() -> Slot<W> {
        Slot { ids: Vec::new(), work: None, touched: 0 }
    }

    /// How many ids of `prompt` need not be read again. At least its last one has to be, to know what follows.
    pub(crate) fn common(&self, prompt: &[u32]) -> usize {
        common(&self.ids, prompt)
    }
}

fn common(known: &[u32], prompt: &[u32]) -> usize {
    let same = known.iter().zip(prompt).take_while(|(own, other)| own == other).count();
    same.min(prompt.len().saturating_sub(1))
}

/// The slot for a text that begins with `prompt`: of the idle ones the one that keeps most of the prompt (`kept` says how
/// many of its first so many ids a slot can keep), if that is at least half of it; or else the one that nobody has used for
/// the longest time, so that a conversation is not forgotten because another one begins with the same few words.
pub(crate) fn choose<W>(
    slots: &[Slot<W>],
    prompt: &[u32],
    kept: impl Fn(usize, usize) -> usize,
) -> Option<usize> {
    let idle = || slots.iter().enumerate().filter(|(_, slot)| slot.work.is_none());
    let kept = |(index, slot): (usize, &Slot<W>)| (kept(index, slot.common(prompt)), index);
    let (most, best) = idle().rev().map(kept).max_by_key(|(kept, _)| *kept)?;
    if 2 * most >= prompt.len() {
        return Some(best);
    }
    idle().min_by_key(|(_, slot)| slot.touched).map(|(index, _)| index)
}

/// How many of the first ids of `prompt` the slot knows that knows most of them, idle or not, and which it is.
pub(crate) fn knows_most<W>(
    slots: &[Slot<W>],
    prompt: &[u32],
    kept: impl Fn(usize, usize) -> usize,
) -> (usize, usize) {
    let known = |(index, slot): (usize, &Slot<W>)| (kept(index, slot.common(prompt)), index);
    slots.iter().enumerate().map(known).max().unwrap_or((0, 0))
}

/// How many of the first ids of `prompt` a slot will know that has `read` so many of a prompt of its `own`; 0 if it knows them
/// already. Slots `with_memories` can be copied where they are remembered alone: before the last id of their prompt.
pub(crate) fn promised(own: &[u32], read: usize, prompt: &[u32], with_memories: bool) -> usize {
    let promised = match common(own, prompt) {
        common if !with_memories => common,
        common if common + 1 >= own.len() => own.len() - 1,
        _ => 0,
    };
    if read < promised { promised } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gets_the_slot_that_knows_it_best_or_is_missed_least() {
        let slot =
            |ids: &[u32], touched, busy: bool| Slot { ids: ids.to_vec(), work: busy.then_some(()), touched };
        type Case<'a> = (&'a [Slot<()>], &'a [u32], Option<usize>);
        let cases: [Case<'_>; 6] = [
            (&[slot(&[], 0, false), slot(&[], 0, false)], &[1, 2], Some(0)),
            (&[slot(&[1, 2, 3], 5, false), slot(&[1, 2, 3, 4, 9], 7, false)], &[1, 2, 3, 4, 5], Some(1)),
            // Busy slots are nobody else's.
            (&[slot(&[1, 2, 3], 5, false), slot(&[1, 2, 3, 4, 9], 7, true)], &[1, 2, 3, 4, 5], Some(0)),
            (&[slot(&[], 0, true)], &[1], None),
            // A short beginning in common is no reason to forget a long conversation.
            (&[slot(&[1, 5, 6, 7], 9, false), slot(&[], 0, false)], &[1, 2, 3, 4, 5, 6], Some(1)),
            (&[slot(&[1, 5], 9, false), slot(&[8], 3, false), slot(&[9], 4, false)], &[1, 2, 3, 4], Some(1)),
        ];
        for (slots, prompt, chosen) in cases {
            assert_eq!(choose(slots, prompt, |_, length| length), chosen, "{prompt:?}");
        }
        // What a slot knows but cannot go back to is worth nothing: the other one keeps half.
        let slots = [slot(&[1, 2, 3, 4, 5, 6], 5, false), slot(&[1, 2, 3], 7, false)];
        let kept = |index, length| if index == 0 { 0 } else { length };
        assert_eq!(choose(&slots, &[1, 2, 3, 9, 9], kept), Some(1));
    }

    #[test]
    fn a_text_is_copied_from_the_slot_that_knows_it_best_whoever_works_there() {
        let slot = |ids: &[u32], busy: bool| Slot { ids: ids.to_vec(), work: busy.then_some(()), touched: 0 };
        let slots = [slot(&[1, 2], false), slot(&[1, 2, 3, 9], true), slot(&[4], false)];
        for (prompt, known) in
            [(&[1, 2, 3, 4][..], (3, 1)), (&[4, 5], (1, 2)), (&[7, 8], (0, 2)), (&[4], (0, 2))]
        {
            assert_eq!(knows_most(&slots, prompt, |_, length| length), known, "{prompt:?}");
        }
        // What it knows but cannot be copied is worth nothing.
        let kept = |index, length| if index == 1 { 0 } else { length };
        assert_eq!(knows_most(&slots, &[1, 2, 3, 4], kept), (2, 0));
    }

    #[test]
    fn what_is_being_read_is_waited_for() {
        let own = [1, 2, 3, 4];
        for (read, prompt, promises, with_memories) in [
            (0, &[1, 2, 3, 4][..], 3, 3),
            (2, &[1, 2, 3, 4], 3, 3),
            // There to be copied already.
            (3, &[1, 2, 3, 4], 0, 0),
            // One that goes on after it, one that parts from it, one that is its beginning, one that is another.
            (0, &[1, 2, 3, 4, 5, 6], 4, 3),
            (3, &[1, 2, 3, 4, 5, 6], 4, 0),
            (0, &[1, 2, 9, 9], 2, 0),
            (0, &[1, 2], 1, 0),
            (0, &[9], 0, 0),
        ] {
            assert_eq!(promised(&own, read, prompt, false), promises, "{read} {prompt:?}");
            assert_eq!(promised(&own, read, prompt, true), with_memories, "{read} {prompt:?} with memories");
        }
    }

    #[test]
    fn the_last_id_of_a_prompt_is_read_again() {
        let slot: Slot<()> = Slot { ids: vec![1, 2, 3], work: None, touched: 0 };
        for (prompt, common) in [(&[1, 2, 3][..], 2), (&[1, 2, 3, 4], 3), (&[1, 9], 1), (&[4], 0), (&[1], 0)]
        {
            assert_eq!(slot.common(prompt), common);
        }
    }
}
