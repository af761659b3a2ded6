//! Allow lists of system calls as filters.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// A condition on one argument of a call, which is named by its place, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The argument's low 32 bits are this number.
    Is(u8, u32),
    /// Of the argument's low 32 bits, those set in the first number are as in the second one.
    Masked(u8, u32, u32),
    /// All of the argument's 64 bits are zero.
    Null(u8),
}

/// The condition that the argument is this number.
#[must_use]
pub const fn is(argument: u8, value: c_int) -> Argument {
    Argument::Is(argument, value.cast_unsigned())
}

/// The condition that the argument has all of these bits.
#[must_use]
pub const fn has(argument: u8, bits: c_int) -> Argument {
    Argument::Masked(argument, bits.cast_unsigned(), bits.cast_unsigned())
}

/// The condition that the argument has none of these bits.
#[must_use]
pub const fn lacks(argument: u8, bits: c_int) -> Argument {
    Argument::Masked(argument, bits.cast_unsigned(), 0)
}

impl Argument {
    fn condition(self) -> Result<SeccompCondition, BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{Eq, MaskedEq};
        match self {
            Self::Is(at, value) => SeccompCondition::new(at, Dword, Eq, value.into()),
            Self::Masked(at, mask, value) => {
                SeccompCondition::new(at, Dword, MaskedEq(mask.into()), value.into())
            }
            Self::Null(at) => SeccompCondition::new(at, Qword, Eq, 0),
        }
    }
}

/// A call that is allowed if all conditions of one of these lists hold.
pub type Limited = (c_long, &'static [&'static [Argument]]);

/// The reason why a filter cannot be made or put in force.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The list cannot be made a program.
    #[error(transparent)]
    Program(#[from] BackendError),
    /// The kernel refuses the filter.
    #[error(transparent)]
    Kernel(#[from] seccompiler::Error),
}

/// A list of the calls that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CallFilter {
    /// Each call's lists of conditions; a call without a list has no condition.
    calls: BTreeMap<c_long, Vec<Vec<Argument>>>,
}

impl CallFilter {
    /// Allows calls, whatever their arguments.
    pub fn allow(&mut self, calls: &[c_long]) {
        let calls = calls.iter().map(|call| (*call, Vec::new()));
        self.calls.extend(calls);
    }

    /// Allows a call if all conditions of one of these lists hold, or of one that was given before. A call that is
    /// allowed without a condition stays so.
    pub fn allow_if(&mut self, call: c_long, any_of: &[&[Argument]]) {
        let any_of = any_of.iter().map(|all| all.to_vec());
        match self.calls.get_mut(&call) {
            Some(there) if there.is_empty() => {}
            Some(there) => there.extend(any_of),
            None => drop(self.calls.insert(call, any_of.collect())),
        }
    }

    /// Allows calls under their conditions.
    pub fn allow_limited(&mut self, calls: &[Limited]) {
        for (call, any_of) in calls {
            self.allow_if(*call, any_of);
        }
    }

    /// The program under which each other call fails with this error number.
    ///
    /// # Errors
    /// If there are too many calls or conditions for a program, or none is known for this machine.
    pub fn failing_program(&self, errno: c_int) -> Result<Vec<libc::sock_filter>, FilterError> {
        let program = self.program(SeccompAction::Errno(errno.cast_unsigned()))?;
        let steps = program.iter().map(|step| libc::sock_filter {
            code: step.code,
            jt: step.jt,
            jf: step.jf,
            k: step.k,
        });
        Ok(steps.collect())
    }

    /// Has each other call end the process from here on, for all of its threads.
    ///
    /// # Errors
    /// If there is no such program, or the kernel has no filters or refuses this one.
    pub fn kill_others_on_all_threads(&self) -> Result<(), FilterError> {
        let program = self.program(SeccompAction::KillProcess)?;
        Ok(seccompiler::apply_filter_all_threads(&program)?)
    }

    fn program(&self, others: SeccompAction) -> Result<BpfProgram, BackendError> {
        let mut rules = BTreeMap::new();
        for (call, any_of) in &self.calls {
            let any_of = any_of.iter().map(|all| {
                let all = all.iter().map(|argument| argument.condition());
                SeccompRule::new(all.collect::<Result<_, _>>()?)
            });
            rules.insert(*call, any_of.collect::<Result<Vec<_>, _>>()?);
        }
        let arch = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, others, SeccompAction::Allow, arch)?.try_into()
    }
}

/// Has this call fail with this error number from here on, on all threads of the process; others are allowed.
///
/// # Errors
/// If the kernel has no filters or refuses this one.
pub fn refuse_on_all_threads(call: c_long, errno: c_int) -> Result<(), FilterError> {
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.cast_unsigned()),
        std::env::consts::ARCH.try_into()?,
    );
    let program: BpfProgram = filter?.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{no_new_privileges, sandbox::filter_system_calls};

    const LIMITED: [Limited; 1] = [(libc::SYS_fcntl, &[&[is(1, libc::F_GETFD)]])];

    /// The end of a call with these arguments under a filter; `fcntl` does nothing to a descriptor that does not
    /// exist.
    fn tried(filter: &CallFilter, about: c_int) -> c_int {
        let mut filter = filter.clone();
        // Calls that a thread needs to end.
        filter.allow(&[
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_futex,
            libc::SYS_munmap,
            libc::SYS_madvise,
            libc::SYS_mprotect,
            libc::SYS_rt_sigprocmask,
            libc::SYS_sigaltstack,
            libc::SYS_brk,
            libc::SYS_mmap,
            libc::SYS_sched_yield,
            libc::SYS_set_robust_list,
            libc::SYS_gettid,
            libc::SYS_write,
        ]);
        let program = filter.failing_program(libc::EPERM).unwrap();
        let body = move || {
            no_new_privileges().unwrap();
            filter_system_calls(&program, false).unwrap();
            // SAFETY: no descriptor has this number.
            let rc = unsafe { libc::fcntl(-1, about) };
            assert_eq!(rc, -1);
            std::io::Error::last_os_error().raw_os_error().unwrap()
        };
        std::thread::spawn(body).join().unwrap()
    }

    #[test]
    fn a_call_is_allowed_if_one_of_its_lists_holds() {
        let mut filter = CallFilter::default();
        assert_eq!(tried(&filter, libc::F_GETFD), libc::EPERM);
        filter.allow_limited(&LIMITED);
        assert_eq!(tried(&filter, libc::F_GETFD), libc::EBADF);
        assert_eq!(tried(&filter, libc::F_GETFL), libc::EPERM);
        filter.allow_if(libc::SYS_fcntl, &[&[is(1, libc::F_GETFL), is(0, 7)]]);
        assert_eq!(tried(&filter, libc::F_GETFL), libc::EPERM, "half of a list");
        filter.allow_if(libc::SYS_fcntl, &[&[is(1, libc::F_GETFL), is(0, -1)]]);
        assert_eq!(tried(&filter, libc::F_GETFL), libc::EBADF);
        assert_eq!(tried(&filter, libc::F_GETFD), libc::EBADF, "it stays");
    }

    #[test]
    fn a_call_without_a_condition_stays_so() {
        let mut filter = CallFilter::default();
        filter.allow(&[libc::SYS_fcntl]);
        filter.allow_if(libc::SYS_fcntl, &[&[is(1, libc::F_GETFD)]]);
        assert_eq!(tried(&filter, libc::F_GETFL), libc::EBADF);
    }

    #[test]
    fn bits_are_wanted_and_unwanted() {
        let mut filter = CallFilter::default();
        filter.allow_if(libc::SYS_fcntl, &[&[has(1, 3), lacks(1, 4)]]);
        assert_eq!(tried(&filter, libc::F_GETFL), libc::EBADF);
        assert_eq!(tried(&filter, libc::F_GETFD), libc::EPERM);
        assert_eq!(tried(&filter, 7), libc::EPERM);
        let mut null = CallFilter::default();
        null.allow_if(libc::SYS_fcntl, &[&[Argument::Null(1)]]);
        assert_eq!(tried(&null, libc::F_DUPFD), libc::EBADF);
        assert_eq!(tried(&null, libc::F_GETFL), libc::EPERM);
    }
}
