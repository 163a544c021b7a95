"""Text with named parts, its tokens and their classes, and what a decoding leaves. No torch."""
