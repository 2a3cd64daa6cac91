//! The bounded queue of sequences for the scheduler.

use crate::serve::batch::job::{QueuedRequest, RequestEvent};
use crate::serve::http::error::ApiError;
use crate::serve::http::metrics::Metrics;
use crate::session::generation::{Echo, Generation};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The sending side of the queue.
#[derive(Clone)]
pub(crate) struct Queue {
    jobs: UnboundedSender<QueuedRequest>,
    /// One permit for each sequence that runs or may wait.
    places: Arc<Semaphore>,
    most: usize,
    slots: usize,
    metrics: Arc<Metrics>,
}

/// Events of the sequences of one request, with their index.
pub(crate) type Updates = UnboundedReceiver<(usize, RequestEvent)>;

impl Queue {
    /// A queue for `slots` running and `waiting` waiting sequences, and its receiving side.
    pub(crate) fn new(
        slots: u32,
        waiting: u32,
        metrics: Arc<Metrics>,
    ) -> (Queue, UnboundedReceiver<QueuedRequest>) {
        let (jobs, receiver) = unbounded_channel();
        let (slots, most) = (slots as usize, (slots + waiting) as usize);
        (Queue { jobs, places: Arc::new(Semaphore::new(most)), most, slots, metrics }, receiver)
    }

    /// The maximum number of sequences of a request.
    pub(crate) fn capacity(&self) -> usize {
        self.most
    }

    /// Queues all sequences of a request, or none if they do not all fit.
    pub(crate) fn submit(
        &self,
        texts: Vec<(Vec<u32>, Generation, Option<Echo>)>,
    ) -> Result<Updates, ApiError> {
        let Ok(mut places) = self.places.clone().try_acquire_many_owned(texts.len() as u32) else {
            self.metrics.rejected.add(1);
            return Err(ApiError::busy(self.retry_after()));
        };
        let (updates, receiver) = unbounded_channel();
        let arrived = Instant::now();
        for (index, (prompt, completion, echo)) in texts.into_iter().enumerate() {
            let Some(_place) = places.split(1) else { break };
            let job = QueuedRequest {
                prompt,
                generation: completion,
                echo,
                updates: updates.clone(),
                index,
                arrived,
                _permit: _place,
            };
            // If the scheduler has ended, the receiver of the events notices it.
            let _ = self.jobs.send(job);
        }
        Ok(receiver)
    }

    /// Seconds until half of the queued sequences have finished, at the recent rate.
    fn retry_after(&self) -> u64 {
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
    fn retry_after_follows_the_recent_rate() {
        let metrics = Arc::new(Metrics::default());
        let (queue, _jobs) = Queue::new(2, 64, metrics.clone());
        assert_eq!(queue.retry_after(), 5);
        // Sequences that took long, but finished in quick succession.
        (0..20).for_each(|_| metrics.finish(Duration::from_secs(60)));
        assert_eq!(queue.retry_after(), 1);
    }
}
