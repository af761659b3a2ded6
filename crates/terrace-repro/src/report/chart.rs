//! The frame of a chart: axes, ticks, and where a value stands.
//!
//! Responsible for: one size of card that a phone shows one to one and a screen side by side. It leaves
//! to others: what is drawn inside.

use terrace_sim::number::float;

use super::format::{at, escaped, short, unit};

/// Width of a chart, pixels.
const WIDTH: f64 = 380.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 32.0;
/// Width of a letter of an axis, pixels, about.
const LETTER: f64 = 6.0;

/// One axis: its ends, and its ticks with what stands at them.
#[derive(Clone, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
    title: String,
}

impl Axis {
    /// An axis with ticks of its own making.
    pub fn new(low: f64, high: f64, ticks: Vec<(f64, String)>, title: &str) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self {
            low,
            high,
            ticks,
            title: title.into(),
        }
    }

    /// An axis that holds 0 and both ends.
    pub fn numbers(low: f64, high: f64, title: &str) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let high = if high > low { high } else { 1.0 };
        let ticks = ticks(low, high, 5.0);
        let ticks = ticks.into_iter().map(|t| (t, short(t))).collect();
        Self::new(low, high, ticks, title)
    }

    /// Time since the start.
    pub fn seconds(end: f64) -> Self {
        let high = if end.is_finite() && end > 0.0 {
            end
        } else {
            1.0
        };
        let ticks = ticks(0.0, high, 6.0);
        let ticks = ticks.into_iter().map(|t| (t, short(t))).collect();
        Self::new(0.0, high, ticks, "time, s")
    }

    /// Sizes from 0 on, in the unit that fits.
    pub fn bytes(most: u64, what: &str) -> Self {
        let (name, size) = unit(most.max(1));
        let high = float(most.max(1));
        let ticks = ticks(0.0, high / size, 5.0);
        let ticks = ticks.into_iter().map(|t| (t * size, short(t))).collect();
        Self::new(0.0, high, ticks, &format!("{what}, {name}"))
    }

    /// Both ends.
    pub fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// Round values between two ends, no more than about so many.
fn ticks(low: f64, high: f64, most: f64) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low];
    }
    let mut step = 1.0;
    while step * most < span {
        step *= 10.0;
    }
    while step > 1e-12 && step * most / 10.0 >= span {
        step /= 10.0;
    }
    let finer = [step / 5.0, step / 2.0];
    let step = finer.into_iter().find(|s| s * most >= span).unwrap_or(step);
    let first = (low / step).ceil();
    let at = |i: u32| (first + f64::from(i)) * step;
    // The ends are counted in, whatever the last digit says.
    (0..20)
        .map(at)
        .take_while(|t| *t <= high + step / 1e6)
        .collect()
}

/// A chart that is being drawn.
pub struct Chart {
    x: Axis,
    y: Axis,
    height: f64,
    inside: String,
}

impl Chart {
    pub fn new(height: f64, x: Axis, y: Axis) -> Self {
        Self {
            x,
            y,
            height,
            inside: String::new(),
        }
    }

    /// The x coordinate of a value of the axis at the bottom, pixels.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    /// The y coordinate of a value of the axis at the side, pixels.
    pub fn y(&self, value: f64) -> f64 {
        let room = self.height - TOP - BOTTOM;
        TOP + (1.0 - self.y.share(value)) * room
    }

    /// Adds SVG.
    pub fn draw(&mut self, svg: &str) {
        self.inside += svg;
        self.inside.push('\n');
    }

    /// Adds a line that keeps each value for its whole stretch of time: `(from, to, value)`. A value that is no
    /// number makes a gap.
    pub fn steps(&mut self, class: &str, title: &str, values: &[(f64, f64, f64)]) {
        let mut path = String::new();
        let mut open = false;
        for (from, to, value) in values {
            if !value.is_finite() {
                open = false;
                continue;
            }
            let y = at(self.y(*value));
            if open {
                path += &format!("V{y}H{}", at(self.x(*to)));
            } else {
                path += &format!("M{} {y}H{}", at(self.x(*from)), at(self.x(*to)));
            }
            open = true;
        }
        if !path.is_empty() {
            self.draw(&format!(
                "<path class=\"line {class}\" d=\"{path}\"><title>{}</title></path>",
                escaped(title)
            ));
        }
    }

    /// Adds a place that says something to whoever points at it.
    pub fn hint(&mut self, x: (f64, f64), y: (f64, f64), text: &str) {
        let (left, right) = (self.x(x.0), self.x(x.1));
        let (top, bottom) = (self.y(y.1), self.y(y.0));
        self.draw(&format!(
            "<rect class=\"hint\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            at(left),
            at(top),
            at(right - left),
            at(bottom - top),
            escaped(text)
        ));
    }

    /// Both ends of the axis at the side.
    pub fn ends(&self) -> (f64, f64) {
        self.y.ends()
    }

    /// The chart; the name says what it shows to whoever cannot see it.
    pub fn svg(self, name: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}{}{}</svg>\n",
            at(WIDTH),
            at(self.height),
            escaped(name),
            self.grid(),
            self.inside,
            self.labels(),
        )
    }

    /// The chart under its title.
    pub fn figure(self, title: &str) -> String {
        figure(title, &self.svg(title))
    }

    fn grid(&self) -> String {
        let (left, right) = (at(LEFT), at(WIDTH - RIGHT));
        let lines = self.y.ticks.iter().map(|(value, _)| {
            let y = at(self.y(*value));
            let class = if *value == 0.0 { "axis" } else { "grid" };
            format!("<path class=\"{class}\" d=\"M{left} {y}H{right}\"/>\n")
        });
        lines.collect()
    }

    fn labels(&self) -> String {
        let mut out = String::new();
        let bottom = self.height - BOTTOM;
        let mut free = 0.0;
        for (value, text) in &self.x.ticks {
            let x = self.x(*value);
            let half = super::format::length(text.chars().count()) * LETTER / 2.0;
            out += &format!("<path class=\"axis\" d=\"M{} {}v4\"/>", at(x), at(bottom));
            // A label that would run into its neighbour is left out.
            if x - half >= free {
                let middle = x.min(WIDTH - half);
                out += &label(middle, bottom + 15.0, "middle", text);
                free = x + half + LETTER;
            }
        }
        for (value, text) in &self.y.ticks {
            out += &label(LEFT - 5.0, self.y(*value) + 4.0, "end", text);
        }
        out += &label(WIDTH - RIGHT, self.height - 4.0, "end", &self.x.title);
        out + &label(2.0, 10.0, "start", &self.y.title)
    }
}

/// A card with a title.
pub fn figure(title: &str, inside: &str) -> String {
    let title = escaped(title);
    format!("<figure><figcaption>{title}</figcaption>\n{inside}</figure>\n")
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>\n",
        at(x),
        at(y),
        escaped(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_the_ends() {
        assert_eq!(ticks(0.0, 40.0, 5.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(0.0, 1.0, 5.0).len(), 6);
        assert_eq!(ticks(-30.0, 50.0, 5.0), [-20.0, 0.0, 20.0, 40.0]);
        assert_eq!(ticks(0.0, 0.03, 5.0).len(), 4);
        for odd in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert_eq!(ticks(0.0, odd, 5.0), [0.0]);
        }
    }

    #[test]
    fn a_missing_value_is_a_gap_and_not_a_zero() {
        let mut chart = Chart::new(150.0, Axis::seconds(4.0), Axis::numbers(0.0, 1.0, "y"));
        let values = [(0.0, 1.0, 0.5), (1.0, 2.0, f64::NAN), (2.0, 4.0, 1.0)];
        chart.steps("c0", "a<b", &values);
        let svg = chart.figure("t");
        assert!(svg.contains("d=\"M44 70H125.5M207 22H370\""), "{svg}");
        assert!(svg.contains("<title>a&lt;b</title>"), "{svg}");
    }
}
