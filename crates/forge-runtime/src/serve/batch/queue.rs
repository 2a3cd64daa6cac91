//! The way from requests to the scheduler: so many may be written to or wait, and no more.

use crate::serve::batch::job::{QueuedRequest, RequestEvent};
use crate::serve::http::error::ApiError;
use crate::serve::http::metrics::Metrics;
use crate::session::generation::{Echo, Generation};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where jobs are left for the scheduler.
#[derive(Clone)]
pub(crate) struct Queue {
    jobs: UnboundedSender<QueuedRequest>,
    /// One for each text that is written or may wait.
    places: Arc<Semaphore>,
    most: usize,
    slots: usize,
    metrics: Arc<Metrics>,
}

/// What becomes of the texts of one request, each by its number.
pub(crate) type Updates = UnboundedReceiver<(usize, RequestEvent)>;

impl Queue {
    /// A queue for a scheduler of `slots` slots, where `waiting` texts may wait; and the scheduler's end of it.
    pub(crate) fn new(
        slots: u32,
        waiting: u32,
        metrics: Arc<Metrics>,
    ) -> (Queue, UnboundedReceiver<QueuedRequest>) {
        let (jobs, receiver) = unbounded_channel();
        let (slots, most) = (slots as usize, (slots + waiting) as usize);
        (Queue { jobs, places: Arc::new(Semaphore::new(most)), most, slots, metrics }, receiver)
    }

    /// The most texts that a request may ask for.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Leaves the texts of one request: all of them, or none if there is not room for all.
    pub(crate) fn submit(
        &self,
        texts: Vec<(Vec<u32>, Generation, Option<Echo>)>,
    ) -> Result<Updates, ApiError> {
        let Ok(mut places) = self.places.clone().try_acquire_many_owned(texts.len() as u32) else {
            self.metrics.refused.add(1);
            return Err(ApiError::busy(self.patience()));
        };
        let (updates, receiver) = unbounded_channel();
        let arrived = Instant::now();
        for (index, (prompt, completion, echo)) in texts.into_iter().enumerate() {
            let Some(_place) = places.split(1) else { break };
            let job =
                QueuedRequest { prompt, completion, echo, updates: updates.clone(), index, arrived, _place };
            // A scheduler that has ended leaves no updates, and that is noticed where they are waited for.
            let _ = self.jobs.send(job);
        }
        Ok(receiver)
    }

    /// Seconds until half of the queued requests have been served, at the rate of the latest ones.
    fn patience(&self) -> u64 {
        const UNKNOWN: u64 = 5;
        let texts = (self.most - self.slots).div_ceil(2).max(1) as f64;
        let seconds = |interval: Duration| (interval.as_secs_f64() * texts).ceil().clamp(1.0, 60.0) as u64;
        self.metrics.interval().map_or(UNKNOWN, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_follows_from_the_latest_texts() {
        let metrics = Arc::new(Metrics::default());
        let (queue, _jobs) = Queue::new(2, 64, metrics.clone());
        assert_eq!(queue.patience(), 5);
        // Texts that took long each, and ended one right after another.
        (0..20).for_each(|_| metrics.finish(Duration::from_secs(60)));
        assert_eq!(queue.patience(), 1);
    }
}
