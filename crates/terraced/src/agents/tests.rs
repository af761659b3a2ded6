mod with_the_daemon;

use super::*;

#[test]
fn a_vm_is_the_hosts_while_it_is_claimed_and_looked_at_again_once() {
    let claims = Claims::default();
    claims.set("a", true);
    assert!(claims.is_by_host("a") && !claims.is_by_host("b"));
    claims.set("a", false);
    assert!(!claims.is_by_host("a"));
    claims.look_again("a");
    assert!(claims.take_look_again("a") && !claims.take_look_again("a"));
}
