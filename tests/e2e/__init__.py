"""The whole loop on real parts: an app goes in, is resized while it trains, completes, and the log tells the story."""
