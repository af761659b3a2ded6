use super::*;

#[test]
fn a_speed_is_a_number_or_max() {
    assert_eq!("max".parse(), Ok(Speed::Max));
    assert_eq!("2.5".parse(), Ok(Speed::Times(2.5)));
    for wrong in ["0", "-1", "NaN", "inf", "1e9", "fast"] {
        assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
    }
    assert_eq!(Speed::Times(0.5).due(Duration::from_secs(4)), 2_000_000_000);
    assert_eq!(Speed::Times(1e6).due(Duration::MAX), u64::MAX);
}
