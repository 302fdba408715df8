use std::io::{self, Write};

use super::{PIXELS, SIDE};

/// Draws 8x8 images side by side, two rows of pixels to a line of text, with labels below.
pub fn digits(out: &mut impl Write, images: &[u8], labels: &[u8]) -> io::Result<()> {
    // Values go from 0 to 16.
    const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
    let shade = |value: u8| SHADES[usize::from(value.min(16)) * (SHADES.len() - 1) / 16];
    for y in 0..SIDE {
        write!(out, "   ")?;
        for image in images.chunks_exact(PIXELS) {
            for x in 0..SIDE {
                let c = shade(image[y * SIDE + x]);
                write!(out, "{c}{c}")?;
            }
            write!(out, "    ")?;
        }
        writeln!(out)?;
    }
    write!(out, "   ")?;
    for label in labels {
        write!(out, "{:^width$}    ", format!("label {label}"), width = 2 * SIDE)?;
    }
    writeln!(out)
}
