//! The process that opens pagemaps, as the program starts it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use terrace_sys::receive_with_fds;

fn request(kind: u8, pid: u32) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(pid.to_ne_bytes());
    bytes
}

#[test]
fn it_opens_under_its_filter_and_ends_with_its_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace-agent"))
        .arg("opener")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    let ask = |kind, pid| {
        (&ours).write_all(&request(kind, pid)).unwrap();
        let mut errno = [0; 4];
        let (read, files) = receive_with_fds(&ours, &mut errno).unwrap();
        assert_eq!(read, 4);
        (i32::from_ne_bytes(errno), files)
    };
    for _ in 0..100 {
        let (errno, mut files) = ask(0, std::process::id());
        assert_eq!((errno, files.len()), (0, 1));
        let mut entry = [0; 8];
        let at = (&raw const entry) as u64 / 4096 * 8;
        File::from(files.pop().unwrap())
            .read_exact_at(&mut entry, at)
            .unwrap();
        assert_eq!(u64::from_ne_bytes(entry) >> 63, 1, "this page is there");
    }
    assert_eq!(ask(0, u32::MAX).0, libc::ENOENT);
    ours.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn it_says_why_it_ends() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_terrace-agent"))
        .arg("opener")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (&ours).write_all(&request(9, 9)).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("a request that is none"), "{said}");
}
