"""The log's past: travel, audits, stories, timelines, exports."""
