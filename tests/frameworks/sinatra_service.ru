# For puma.

require_relative 'sinatra_service'

run Service
