//! The queue of monitors that wait for inspection: new ones go first, and those that are tried again occupy no more
//! than some of the inspectors, even if many hang.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue of new and of repeated jobs.
pub struct Queue<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
    most_repeated: usize,
}

struct Inner<T> {
    first: VecDeque<T>,
    again: VecDeque<T>,
    /// Number of repeated jobs that are being done.
    repeated: usize,
    is_closed: bool,
}

/// A job that is being done; it is over when this is dropped.
pub struct Turn<'a, T> {
    queue: &'a Queue<T>,
    /// The job to do.
    pub job: T,
    is_repeated: bool,
}

impl<T> Queue<T> {
    /// An empty queue, of which at most `most_repeated` repeated jobs are done at once.
    pub fn new(most_repeated: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                first: VecDeque::new(),
                again: VecDeque::new(),
                repeated: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
            most_repeated,
        }
    }

    /// Appends a job.
    pub fn push(&self, job: T, is_repeated: bool) {
        let mut inner = self.inner();
        if is_repeated {
            inner.again.push_back(job);
        } else {
            inner.first.push_back(job);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Waits for the next job; `None` once the queue is closed.
    pub fn next(&self) -> Option<Turn<'_, T>> {
        let mut inner = self.inner();
        loop {
            if inner.is_closed {
                return None;
            }
            if let Some((job, is_repeated)) = inner.take(self.most_repeated) {
                return Some(Turn {
                    queue: self,
                    job,
                    is_repeated,
                });
            }
            let woken = self.changed.wait(inner);
            inner = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue: no further job is done.
    pub fn close(&self) {
        self.inner().is_closed = true;
        self.changed.notify_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inner<T> {
    fn take(&mut self, most_repeated: usize) -> Option<(T, bool)> {
        if let Some(job) = self.first.pop_front() {
            return Some((job, false));
        }
        if self.repeated >= most_repeated {
            return None;
        }
        let job = self.again.pop_front()?;
        self.repeated += 1;
        Some((job, true))
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if self.is_repeated {
            self.queue.inner().repeated -= 1;
            self.queue.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_monitor_does_not_wait_for_a_thousand_retries() {
        let queue = Queue::new(4);
        (0..1000).for_each(|job| queue.push(job, true));
        let hang: Vec<_> = (0..4).map(|_| queue.next().unwrap()).collect();
        queue.push(7777, false);
        // Four hang; the fifth looker has the new one and nothing else.
        let fresh = queue.next().unwrap();
        assert_eq!(fresh.job, 7777);
        assert_eq!(queue.inner().take(4), None, "a fifth may not hang too");
        drop(hang);
        let jobs: Vec<i32> = (0..3).map(|_| queue.next().unwrap().job).collect();
        assert_eq!(jobs, [4, 5, 6], "in turn");
        queue.close();
        assert!(queue.next().is_none());
    }
}
