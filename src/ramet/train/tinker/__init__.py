"""The backend on the Tinker API: weights on a server, credit, trees and checkpoints here."""
